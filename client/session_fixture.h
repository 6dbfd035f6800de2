#ifndef TORPOR_CLIENT_SESSION_FIXTURE_H_
#define TORPOR_CLIENT_SESSION_FIXTURE_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/fake_daemon.h"
#include "client/session.h"
#include "lib/base/status.h"
#include "lib/base/status_matchers.h"
#include "lib/base/units.h"
#include "lib/cuda/fault_driver.h"
#include "lib/cuda/host_driver.h"
#include "lib/wire/messages.h"

namespace torpor::client {

inline constexpr Bytes kUnit = FakeDaemon::kGranularity;
inline constexpr OperationId kOperation(1000);
inline constexpr OperationId kOther(1001);

inline char* Memory(DeviceAddress address) { return reinterpret_cast<char*>(address.value()); }

// A session with the fake daemon, over a host device whose driver can be made to fail.
class SessionTest : public testing::Test {
 protected:
  SessionTest() { Connect(); }

  void Connect(Session::Options options = {}) {
    options.socket_path = daemon_.socket_path();
    auto session = Session::Connect(
        options, [this](const wire::HelloReply& hello) -> Result<std::shared_ptr<Driver>> {
          DeviceInfo device;
          device.kind = hello.device_kind;
          device.uuid = hello.device_uuid;
          device.total = hello.device_total;
          device.granularity = hello.granularity;
          TORPOR_ASSIGN_OR_RETURN(host_, HostDriver::OpenDevice(device));
          driver_ = std::make_shared<FaultDriver>(*host_);
          return std::shared_ptr<Driver>(driver_);
        });
    ASSERT_THAT(session, IsOk());
    session_ = *std::move(session);
  }

  DeviceAddress Allocate(const std::string& tag, Bytes size) {
    const auto address = session_->Allocate(tag, size);
    EXPECT_THAT(address, IsOk());
    return address.ok() ? *address : DeviceAddress();
  }

  void PutToSleep(const std::string& tag) {
    ASSERT_THAT(daemon_.Quiesce(kOperation), IsOk());
    ASSERT_THAT(daemon_.Unmap(kOperation, tag), IsOk());
    daemon_.DropMemory(tag);
    ASSERT_THAT(daemon_.Resume(kOperation, {tag}), IsOk());
  }

  Status Begin(const std::vector<std::string>& tags, milliseconds timeout = milliseconds(20)) {
    return session_->WorkBegin(tags, timeout);
  }

  static Status Fault() { return Internal("FAULT", "injected"); }

  FakeDaemon daemon_;
  std::unique_ptr<HostDriver> host_;
  std::shared_ptr<FaultDriver> driver_;
  std::unique_ptr<Session> session_;
};

}  // namespace torpor::client

#endif  // TORPOR_CLIENT_SESSION_FIXTURE_H_
