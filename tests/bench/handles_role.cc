#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/unique_fd.h"
#include "tests/bench/figures.h"
#include "tests/bench/role.h"

namespace torpor::bench {
namespace {

constexpr int kHandles = 24;

// What the driver takes for handles of one size, one after the other, as allocations come. The
// importer is the same process, which the driver allows.
class Handles {
 public:
  Handles(Driver& driver, Bytes size) : driver_(driver), size_(size) {}

  Result<Json> Measure() {
    TORPOR_ASSIGN_OR_RETURN(const DeviceAddress base,
                            driver_.ReserveAddresses(size_ * kHandles, Bytes(0)));
    for (int i = 0; i < kHandles; ++i) TORPOR_RETURN_IF_ERROR(Begin(base + size_ * i));
    for (int i = 0; i < kHandles; ++i) TORPOR_RETURN_IF_ERROR(End(base + size_ * i, i));
    TORPOR_RETURN_IF_ERROR(driver_.FreeAddresses(base, size_ * kHandles));
    Json json{{"bytes", size_.value()}};
    for (const auto& [name, values] : taken_) {
      json[name + "_us"] = Rounded(Median(values));
      json[name + "_first_us"] = Rounded(values.front());
    }
    return json;
  }

 private:
  struct Pair {
    MemoryHandle created;
    MemoryHandle imported;
    UniqueFd fd;
  };

  template <typename Call>
  auto Time(const char* name, Call call) {
    const TimePoint start = std::chrono::steady_clock::now();
    auto result = call();
    taken_[name].push_back(MillisecondsSince(start) * 1000);
    return result;
  }

  Status Begin(DeviceAddress address) {
    Pair pair;
    TORPOR_ASSIGN_OR_RETURN(pair.created, Time("create", [&] { return driver_.Create(size_); }));
    TORPOR_ASSIGN_OR_RETURN(pair.fd, Time("export", [&] { return driver_.Export(pair.created); }));
    TORPOR_ASSIGN_OR_RETURN(pair.imported,
                            Time("import", [&] { return driver_.Import(pair.fd.get(), size_); }));
    TORPOR_RETURN_IF_ERROR(Time("map", [&] { return driver_.Map(address, size_, pair.imported); }));
    TORPOR_RETURN_IF_ERROR(
        Time("set_access", [&] { return driver_.SetAccess(address, size_, Access::kReadWrite); }));
    pairs_.push_back(std::move(pair));
    return Status::Ok();
  }

  Status End(DeviceAddress address, int i) {
    Pair& pair = pairs_[static_cast<size_t>(i)];
    pair.fd.Reset();
    TORPOR_RETURN_IF_ERROR(Time("unmap", [&] { return driver_.Unmap(address, size_); }));
    TORPOR_RETURN_IF_ERROR(driver_.Release(pair.imported));
    return Time("release", [&] { return driver_.Release(pair.created); });
  }

  Driver& driver_;
  const Bytes size_;
  std::vector<Pair> pairs_;
  std::map<std::string, std::vector<double>> taken_;
};

Result<std::string> MeasureHandles(const std::string& kind) {
  const std::vector<Bytes> sizes = {MiB(2), MiB(32), MiB(128), MiB(512)};
  TORPOR_ASSIGN_OR_RETURN(const std::unique_ptr<Driver> driver,
                          OpenRoleDriver(kind, sizes.back() * kHandles));
  Json json = Json::array();
  for (const Bytes size : sizes) {
    TORPOR_ASSIGN_OR_RETURN(Json figures, Handles(*driver, size).Measure());
    json.push_back(std::move(figures));
  }
  return json.dump();
}

}  // namespace

int RunHandles(const std::vector<std::string>& arguments) {
  if (arguments.size() != 1) return 2;
  Say(MeasureHandles(arguments[0]));
  return 0;
}

}  // namespace torpor::bench
