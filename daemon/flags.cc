#include "daemon/flags.h"

#include <arpa/inet.h>
#include <grp.h>
#include <netinet/in.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "lib/cli/flag_set.h"

namespace torpor {
namespace {

bool AllDigits(const std::string& text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
}

Status ParseDriver(std::string_view text, DriverChoice& driver) {
  if (text == "auto") {
    driver = DriverChoice::kAuto;
  } else if (text == "cuda") {
    driver = DriverChoice::kCuda;
  } else if (text == "host") {
    driver = DriverChoice::kHost;
  } else {
    return InvalidArgument("BAD_FLAG",
                           "\"" + std::string(text) + "\" is neither auto, cuda nor host");
  }
  return Status::Ok();
}

Status ParsePoolMemory(std::string_view text, PoolMemoryKind& kind) {
  if (text == "auto") {
    kind = PoolMemoryKind::kAuto;
  } else if (text == "memfd") {
    kind = PoolMemoryKind::kMemfd;
  } else if (text == "tmpfs") {
    kind = PoolMemoryKind::kTmpfs;
  } else if (text == "anonymous") {
    kind = PoolMemoryKind::kAnonymous;
  } else {
    return InvalidArgument(
        "BAD_FLAG", "\"" + std::string(text) + "\" is neither auto, memfd, tmpfs nor anonymous");
  }
  return Status::Ok();
}

Status ParsePinPool(std::string_view text, PinChoice& choice) {
  if (text == "auto") {
    choice = PinChoice::kAuto;
  } else if (text == "background") {
    choice = PinChoice::kBackground;
  } else if (text == "on_demand") {
    choice = PinChoice::kOnDemand;
  } else {
    return InvalidArgument(
        "BAD_FLAG", "\"" + std::string(text) + "\" is neither auto, background nor on_demand");
  }
  return Status::Ok();
}

Status ParseAutoBytes(std::string_view text, std::optional<Bytes>& bytes) {
  bytes.reset();
  if (text == "auto") return Status::Ok();
  TORPOR_ASSIGN_OR_RETURN(bytes, ParseBytes(text));
  return Status::Ok();
}

Status ParseMode(std::string_view text, mode_t& mode) {
  const std::string digits(text);
  char* end = nullptr;
  const unsigned long value = std::strtoul(digits.c_str(), &end, 8);
  if (!AllDigits(digits) || digits.size() > 4 || *end != '\0' || value > 0777 ||
      (value & 0600) != 0600) {
    return InvalidArgument("BAD_FLAG",
                           "\"" + digits + "\" is no file mode that lets its owner in, as 0660");
  }
  mode = static_cast<mode_t>(value);
  return Status::Ok();
}

Status CheckTls(const Flags& flags) {
  const int given = (flags.tls_cert.empty() ? 0 : 1) + (flags.tls_key.empty() ? 0 : 1) +
                    (flags.tls_client_ca.empty() ? 0 : 1);
  if (given == 0) {
    if (!flags.listen.has_value() || IsLoopback(*flags.listen)) return Status::Ok();
    return InvalidArgument(
        "NOT_LOOPBACK", "--listen: " + flags.listen->ToString() +
                            " can be reached from other machines, which needs mTLS: --tls_cert, "
                            "--tls_key, --tls_client_ca and --access; or use 127.0.0.1 or [::1]");
  }
  if (given != 3) {
    return InvalidArgument("BAD_FLAG",
                           "--tls_cert, --tls_key and --tls_client_ca are needed together");
  }
  if (!flags.listen.has_value()) {
    return InvalidArgument("BAD_FLAG", "--tls_cert is for TCP: it needs --listen");
  }
  if (flags.access.empty()) {
    return InvalidArgument("BAD_FLAG",
                           "--tls_cert needs --access, which says what the names in clients' "
                           "certificates may do");
  }
  return Status::Ok();
}

FlagSet MakeFlagSet(Flags& flags) {
  FlagSet set;
  set.Add("driver", "auto|cuda|host",
          "what the device is: auto takes CUDA where an NVIDIA device is and host memory only "
          "where there is none at all (default auto)",
          [&](std::string_view value) { return ParseDriver(value, flags.driver); });
  set.AddString("device", "NAME",
                "cuda: UUID or ordinal (default 0); host: a name (default host-0)", &flags.device);
  set.AddString("runtime_dir", "DIR",
                "where sockets and lock lie, in a folder for the device (default "
                "$TORPOR_RUNTIME_DIR, else /run/torpor for root, else $XDG_RUNTIME_DIR/torpor)",
                &flags.runtime_dir);
  set.Add("listen", "ADDRESS",
          "also serve gRPC on this address, as 127.0.0.1:7070 or [::1]:7070; one that other "
          "machines reach needs --tls_cert; port 0 takes a free one (default none)",
          [&](std::string_view value) {
            TORPOR_ASSIGN_OR_RETURN(flags.listen, ParseAddress(std::string(value)));
            return Status::Ok();
          });
  set.AddString("access", "FILE",
                "who may do what, by user, group and certificate; without it, whoever can open a "
                "socket may do everything there (default none)",
                &flags.access);
  set.AddString("tls_cert", "FILE",
                "PEM certificate of --listen, which then takes only TLS, from clients with a "
                "certificate; needs --access (default none)",
                &flags.tls_cert);
  set.AddString("tls_key", "FILE", "PEM private key of --tls_cert (default none)", &flags.tls_key);
  set.AddString("tls_client_ca", "FILE",
                "PEM certificates of the authorities of clients (default none)",
                &flags.tls_client_ca);
  set.Add("metrics", "ADDRESS",
          "serve Prometheus' metrics over HTTP at this numeric address and /metrics, as "
          "127.0.0.1:9877 or 0.0.0.0:9877; port 0 takes a free one (default none)",
          [&](std::string_view value) {
            TORPOR_ASSIGN_OR_RETURN(flags.metrics, ParseAddress(std::string(value)));
            return Status::Ok();
          });
  set.Add("host_pool", "SIZE|auto",
          "budget of the pinned host memory for sleeping segments; auto is half of what the "
          "machine and the cgroup have available (default auto)",
          [&](std::string_view value) { return ParseAutoBytes(value, flags.host_pool); });
  set.Add("pool_memory", "auto|memfd|tmpfs|anonymous",
          "what the host pool is made of: shared memory in a memfd or in a tmpfs of its own, or "
          "memory of the process; auto takes the first of them that comes with huge pages "
          "(default auto)",
          [&](std::string_view value) { return ParsePoolMemory(value, flags.pool_memory); });
  set.AddString("pool_dir", "DIR",
                "a folder on a tmpfs in which the host pool is a file, instead of --pool_memory: "
                "with a keeper, what sleeps then also outlives the end of both processes at once "
                "(default none)",
                &flags.pool_dir);
  set.Add("pin_pool", "auto|background|on_demand",
          "when the host pool is pinned: from the start on, in the background, or as sleeps need "
          "it; auto is background with CUDA (default auto)",
          [&](std::string_view value) { return ParsePinPool(value, flags.pin_pool); });
  set.AddSwitch("verify_images",
                "compare the bytes of whatever a sleep need not copy by its digest, and copy what "
                "differs: slow, to be sure of the digests",
                &flags.verify_images);
  set.Add("safety_reserve", "SIZE|auto",
          "device memory that is never promised; auto is 1 % of the device, at most 512MiB "
          "(default auto)",
          [&](std::string_view value) { return ParseAutoBytes(value, flags.safety_reserve); });
  set.AddSwitch("require_reservation", "refuse allocations without a reservation",
                &flags.require_reservation);
  set.AddString("keeper", "PATH",
                "socket of torpor-keeper, which gives this flag itself: what workers have outlives "
                "the daemon (default none)",
                &flags.keeper);
  set.AddDuration(
      "reconnect_grace",
      "with a keeper: how long a daemon that was started again waits for the workers of "
      "the one before (default 30s)",
      &flags.reconnect_grace);
  set.AddDuration("worker_deadline", "how long a worker may take for each answer (default 5s)",
                  &flags.worker_deadline);
  set.AddDuration(
      "default_deadline",
      "how long Sleep and WakeUp may take when the caller sets no deadline (default 5m)",
      &flags.default_deadline);
  set.AddDuration("shutdown_deadline",
                  "how long running calls may take after SIGTERM (default 10s)",
                  &flags.shutdown_deadline);
  set.AddBytes("host_device_memory", "host driver: size of the device (default 1GiB)",
               &flags.host_device_memory);
  set.AddBytes("host_granularity", "host driver: unit of its memory (default 2MiB)",
               &flags.host_granularity);
  set.Add("socket_mode", "MODE", "file mode of the sockets, in octal (default 0660)",
          [&](std::string_view value) { return ParseMode(value, flags.socket_mode); });
  set.Add(
      "worker_socket_mode", "MODE",
      "that of the workers' socket, if it is another one (default --socket_mode)",
      [&](std::string_view value) { return ParseMode(value, flags.worker_socket_mode.emplace()); });
  set.AddString("socket_group", "GROUP",
                "group of the sockets, a name or number; the daemon has to be root or in it "
                "(default its own)",
                &flags.socket_group);
  set.AddString("worker_socket_group", "GROUP",
                "that of the workers' socket, if it is another one (default --socket_group)",
                &flags.worker_socket_group);
  set.Add("log_level", "LEVEL", "debug, info, warning or error (default info)",
          [&](std::string_view value) {
            TORPOR_ASSIGN_OR_RETURN(flags.log_level, log::ParseLevel(value));
            return Status::Ok();
          });
  set.AddSwitch("version", "print the version", &flags.version);
  set.AddSwitch("help", "print this", &flags.help);
  return set;
}

}  // namespace

std::string ListenAddress::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return (v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<std::optional<gid_t>> FindGroup(const std::string& name) {
  if (name.empty()) return std::optional<gid_t>();
  if (AllDigits(name) && name.size() < 10) {
    return std::optional<gid_t>(static_cast<gid_t>(std::stoul(name)));
  }
  ::group entry{};
  ::group* found = nullptr;
  std::vector<char> room(1 << 16);
  (void)::getgrnam_r(name.c_str(), &entry, room.data(), room.size(), &found);
  if (found != nullptr) return std::optional<gid_t>(entry.gr_gid);
  return InvalidArgument("UNKNOWN_GROUP", "there is no group \"" + name + "\"").With("group", name);
}

Result<ListenAddress> ParseAddress(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string port = colon == std::string::npos ? "" : text.substr(colon + 1);
  std::string host = text.substr(0, colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  in_addr v4{};
  in6_addr v6{};
  const bool is_v4 = !brackets && ::inet_pton(AF_INET, host.c_str(), &v4) == 1;
  const bool is_v6 = brackets && ::inet_pton(AF_INET6, host.c_str(), &v6) == 1;
  if ((!is_v4 && !is_v6) || !AllDigits(port) || port.size() > 5 || std::stoi(port) > 65535) {
    return InvalidArgument("BAD_LISTEN_ADDRESS",
                           "\"" + text +
                               "\" is no numeric address with a port, as 127.0.0.1:7070 or "
                               "[::1]:7070");
  }
  return ListenAddress{host, std::stoi(port)};
}

bool IsLoopback(const ListenAddress& address) {
  in_addr v4{};
  in6_addr v6{};
  if (::inet_pton(AF_INET, address.host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return ::inet_pton(AF_INET6, address.host.c_str(), &v6) == 1 &&
         static_cast<bool>(IN6_IS_ADDR_LOOPBACK(&v6));
}

Result<Flags> ParseFlags(const std::vector<std::string>& arguments) {
  Flags flags;
  TORPOR_ASSIGN_OR_RETURN(const std::vector<std::string> others,
                          MakeFlagSet(flags).Parse(arguments));
  if (!others.empty()) {
    return InvalidArgument("BAD_FLAG", "unexpected argument \"" + others.front() + "\"");
  }
  if (!flags.pool_dir.empty() && flags.pool_memory != PoolMemoryKind::kAuto) {
    return InvalidArgument("BAD_FLAG", "--pool_dir and --pool_memory exclude each other");
  }
  TORPOR_RETURN_IF_ERROR(CheckTls(flags));
  return flags;
}

std::string FlagsHelp() {
  Flags flags;
  return MakeFlagSet(flags).Help();
}

}  // namespace torpor
