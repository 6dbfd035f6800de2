#ifndef TORPOR_CLIENT_CTL_PRINT_H_
#define TORPOR_CLIENT_CTL_PRINT_H_

#include <google/protobuf/message.h>

#include <chrono>
#include <string>

#include "google/rpc/status.pb.h"
#include "torpor/v1/memory_service.pb.h"

namespace torpor::ctl {

// Answers as text for people.
std::string Print(const v1::UsageResponse& usage, std::chrono::system_clock::time_point now);
std::string Print(const v1::SleepResponse& response);
std::string Print(const v1::WakeUpResponse& response);
std::string Print(const v1::ReserveResponse& response, std::chrono::system_clock::time_point now);
std::string Print(const v1::RenewResponse& response, std::chrono::system_clock::time_point now);
std::string Print(const v1::ReleaseResponse& response);

// "RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED: message", then a line for each number.
std::string PrintError(const google::rpc::Status& status);

// Protobuf JSON with the field names of the .proto file, fields without a value included.
std::string PrintJson(const google::protobuf::Message& message);
// Likewise on one line, without its end.
std::string PrintJsonLine(const google::protobuf::Message& message);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_PRINT_H_
