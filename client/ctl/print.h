#ifndef TORPOR_CLIENT_CTL_PRINT_H_
#define TORPOR_CLIENT_CTL_PRINT_H_

#include <google/protobuf/message.h>

#include <chrono>
#include <string>
#include <vector>

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

// What one of several daemons has answered.
template <typename Response>
struct Answer {
  std::string daemon;  // as Daemon::name
  Response response;
  google::rpc::Status status;  // not OK: there is no response
};

// Of several daemons at once, in tables whose first column, `heading`, says whose a row is. A
// daemon without a response has a row with the reason.
std::string PrintSeveral(const std::string& heading,
                         const std::vector<Answer<v1::UsageResponse>>& answers,
                         std::chrono::system_clock::time_point now);
std::string PrintSeveral(const std::string& heading,
                         const std::vector<Answer<v1::SleepResponse>>& answers);
std::string PrintSeveral(const std::string& heading,
                         const std::vector<Answer<v1::WakeUpResponse>>& answers);

// The reason, or where there is none the name of the code.
std::string ReasonOf(const google::rpc::Status& status);

// "RESOURCE_EXHAUSTED HOST_POOL_EXHAUSTED: message", then a line for each number.
std::string PrintError(const google::rpc::Status& status);

// Protobuf JSON with the field names of the .proto file, fields without a value included.
std::string PrintJson(const google::protobuf::Message& message);
// Likewise on one line, without its end.
std::string PrintJsonLine(const google::protobuf::Message& message);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_PRINT_H_
