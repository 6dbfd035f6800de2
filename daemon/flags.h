#ifndef TORPOR_DAEMON_FLAGS_H_
#define TORPOR_DAEMON_FLAGS_H_

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "daemon/log.h"
#include "daemon/pool/pool_memory.h"
#include "lib/base/clock.h"
#include "lib/base/status.h"
#include "lib/base/units.h"

namespace torpor {

enum class DriverChoice { kAuto, kCuda, kHost };
enum class PinChoice { kAuto, kBackground, kOnDemand };

// A TCP address.
struct ListenAddress {
  std::string host;  // "127.0.0.1", "::1"
  int port = 0;      // 0: any that is free
  std::string ToString() const;
};
// "10.0.0.7:7071", "[::1]:7070". INVALID_ARGUMENT BAD_LISTEN_ADDRESS.
Result<ListenAddress> ParseAddress(const std::string& text);
// Whether only this machine reaches it.
bool IsLoopback(const ListenAddress& address);

// The group of this name or number; none for "". INVALID_ARGUMENT UNKNOWN_GROUP.
Result<std::optional<gid_t>> FindGroup(const std::string& name);

// What torpord is told on its command line; docs/reference.md has the table.
struct Flags {
  DriverChoice driver = DriverChoice::kAuto;
  std::string device;       // CUDA: UUID or ordinal; host: a name; empty: the default
  std::string runtime_dir;  // empty: DefaultRuntimeDir()
  std::optional<ListenAddress> listen;
  std::string access;    // path; empty: whoever reaches a socket may do everything there
  std::string tls_cert;  // paths; all three, with `listen` and `access`, or none
  std::string tls_key;
  std::string tls_client_ca;
  std::optional<ListenAddress> metrics;
  std::optional<Bytes> host_pool;  // none: chosen at the start
  PoolMemoryKind pool_memory = PoolMemoryKind::kAuto;
  std::string pool_dir;  // empty: the pool has no name
  PinChoice pin_pool = PinChoice::kAuto;
  bool verify_images = false;
  std::optional<Bytes> safety_reserve;  // none: chosen at the start
  bool require_reservation = false;
  std::string keeper;  // its socket; empty: none
  Duration reconnect_grace = seconds(30);
  Duration worker_deadline = seconds(5);
  Duration default_deadline = std::chrono::minutes(5);
  Duration shutdown_deadline = seconds(10);
  Bytes host_device_memory = GiB(1);
  Bytes host_granularity = MiB(2);
  mode_t socket_mode = 0660;
  std::optional<mode_t> worker_socket_mode;  // none: socket_mode
  std::string socket_group;                  // FindGroup
  std::string worker_socket_group;           // empty: socket_group
  log::Level log_level = log::Level::kInfo;
  bool help = false;
  bool version = false;
};

// INVALID_ARGUMENT BAD_FLAG, BAD_SIZE, BAD_DURATION, BAD_LOG_LEVEL, BAD_LISTEN_ADDRESS,
// NOT_LOOPBACK with a message of one line.
Result<Flags> ParseFlags(const std::vector<std::string>& arguments);
std::string FlagsHelp();

}  // namespace torpor

#endif  // TORPOR_DAEMON_FLAGS_H_
