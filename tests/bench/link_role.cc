#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/bench/role.h"

namespace torpor::bench {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kRepetitions = 4;

// Two blocks of device memory with host memory for each, one for each direction.
class Link {
 public:
  Link(Driver& driver, Bytes block, Bytes amount)
      : driver_(driver), block_(block), amount_(amount) {}

  Status Open();
  Result<std::string> Measure();
  // d2h, h2d or duplex, in steps of 64 MiB or less.
  Result<std::string> Copy(const std::string& what);

 private:
  struct Side {
    std::unique_ptr<HostMemory> host;
    DeviceAddress device;
    StreamId stream;
  };
  Status Queue(const Side& side, bool to_host, Bytes step);
  // GB/s, both directions together.
  Result<double> Time(bool to_host, bool to_device, Bytes step);

  Driver& driver_;
  const Bytes block_;
  const Bytes amount_;
  Side sides_[2];
};

Status Link::Open() {
  for (Side& side : sides_) {
    TORPOR_ASSIGN_OR_RETURN(side.host, HostMemory::Map(block_));
    side.host->Touch();
    TORPOR_RETURN_IF_ERROR(driver_.RegisterHost(side.host->data(), block_));
    TORPOR_ASSIGN_OR_RETURN(side.device, driver_.ReserveAddresses(block_, Bytes(0)));
    TORPOR_ASSIGN_OR_RETURN(const MemoryHandle handle, driver_.Create(block_));
    TORPOR_RETURN_IF_ERROR(driver_.Map(side.device, block_, handle));
    TORPOR_RETURN_IF_ERROR(driver_.SetAccess(side.device, block_, Access::kReadWrite));
    TORPOR_ASSIGN_OR_RETURN(side.stream, driver_.CreateStream());
  }
  return Status::Ok();
}

Status Link::Queue(const Side& side, bool to_host, Bytes step) {
  for (Bytes done; done < amount_; done += step) {
    const Bytes offset = done % block_;
    char* const host = side.host->data() + offset.value();
    TORPOR_RETURN_IF_ERROR(
        to_host ? driver_.CopyToHost(side.stream, host, side.device + offset, step)
                : driver_.CopyToDevice(side.stream, side.device + offset, host, step));
  }
  return Status::Ok();
}

Result<double> Link::Time(bool to_host, bool to_device, Bytes step) {
  const TimePoint start = std::chrono::steady_clock::now();
  if (to_host) TORPOR_RETURN_IF_ERROR(Queue(sides_[0], true, step));
  if (to_device) TORPOR_RETURN_IF_ERROR(Queue(sides_[1], false, step));
  for (const Side& side : sides_) {
    TORPOR_ASSIGN_OR_RETURN(const EventId done, driver_.RecordEvent(side.stream));
    TORPOR_RETURN_IF_ERROR(driver_.WaitEvent(done));
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const int directions = (to_host ? 1 : 0) + (to_device ? 1 : 0);
  return static_cast<double>(amount_.value()) * directions / seconds / 1e9;
}

Result<std::string> Link::Measure() {
  Json json;
  TORPOR_RETURN_IF_ERROR(Time(true, true, block_).status());  // the first copies are slower
  for (const char* const name : {"d2h", "h2d", "duplex"}) {
    const bool to_host = name != std::string("h2d");
    const bool to_device = name != std::string("d2h");
    double best = 0;
    for (const Bytes step : {block_ * 1, Bytes(block_.value() / 4), Bytes(block_.value() / 16)}) {
      std::vector<double> rates;
      for (int i = 0; i < kRepetitions; ++i) {
        TORPOR_ASSIGN_OR_RETURN(const double rate, Time(to_host, to_device, step));
        rates.push_back(rate);
      }
      std::sort(rates.begin(), rates.end());
      json[name]["steps"].push_back({{"step_bytes", step.value()},
                                     {"best", rates.back()},
                                     {"median", rates[rates.size() / 2]}});
      best = std::max(best, rates.back());
    }
    json[name]["best"] = best;
  }
  return json.dump();
}

Result<std::string> Link::Copy(const std::string& what) {
  if (what != "d2h" && what != "h2d" && what != "duplex") {
    return InvalidArgument("BAD_COMMAND", what);
  }
  const TimePoint start = std::chrono::steady_clock::now();
  TORPOR_ASSIGN_OR_RETURN(const double rate,
                          Time(what != "h2d", what != "d2h", Bytes(block_.value() / 16)));
  const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
  return "gbps=" + std::to_string(rate) + " ms=" + std::to_string(taken.count());
}

int AnswerCopies(const std::string& kind, Bytes amount) {
  const Bytes block = std::min(GiB(1), amount);
  const auto driver = OpenRoleDriver(kind, block * 2);
  std::unique_ptr<Link> link;
  Status opened = driver.status();
  if (opened.ok()) {
    link = std::make_unique<Link>(**driver, block, amount);
    opened = link->Open();
  }
  if (opened.ok()) opened = link->Copy("duplex").status();  // the first copies are slower
  if (!opened.ok()) {
    Say(opened);
    return 1;
  }
  Say(std::string("ready"));
  return AnswerLines([&](const std::vector<std::string>& words) { return link->Copy(words[0]); });
}

Result<std::string> MeasureLink(const std::string& kind, Bytes amount) {
  const Bytes block = std::min(GiB(1), amount);
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<Driver> driver, OpenRoleDriver(kind, block * 2));
  Link link(*driver, block, amount);
  TORPOR_RETURN_IF_ERROR(link.Open());
  return link.Measure();
}

}  // namespace

int RunLink(const std::vector<std::string>& arguments) {
  if (arguments.size() == 3 && arguments[2] == "asked") {
    return AnswerCopies(arguments[0], Bytes(std::stoll(arguments[1])));
  }
  if (arguments.size() != 2) return 2;
  Say(MeasureLink(arguments[0], Bytes(std::stoll(arguments[1]))));
  return 0;
}

}  // namespace torpor::bench
