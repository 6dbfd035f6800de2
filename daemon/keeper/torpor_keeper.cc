// The main process of the service: keeps what must outlive torpord, and starts it.

#include <sys/resource.h>

#include <cstdio>
#include <string>
#include <vector>

#include "daemon/keeper/keeper_server.h"
#include "daemon/keeper/service_manager.h"
#include "lib/base/status.h"
#include "lib/cli/flag_set.h"
#include "lib/cli/version.h"

namespace torpor::keeper {
namespace {

// Every extent is a descriptor here, too. Where this fails the daemon says so.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

int Main(const std::vector<std::string>& arguments) {
  KeeperServer::Options options;
  bool help = false;
  bool version = false;
  FlagSet set;
  set.AddString("socket", "PATH", "Where the daemon reaches the keeper", &options.socket);
  set.AddString("journal", "PATH", "The journal, a file on a tmpfs", &options.journal);
  set.AddSwitch("version", "Print the version", &version);
  set.AddSwitch("help", "Print all flags", &help);
  Result<std::vector<std::string>> rest = set.Parse(arguments);
  if (rest.ok() && help) {
    std::printf(
        "torpor-keeper [FLAGS] -- TORPORD [ITS FLAGS]: starts torpord, and keeps what must"
        " outlive it.\n\n%s",
        set.Help().c_str());
    return 0;
  }
  if (rest.ok() && version) {
    std::printf("torpor-keeper %s\n", Version());
    return 0;
  }
  if (!rest.ok() || rest->empty() || options.socket.empty() || options.journal.empty()) {
    std::fprintf(
        stderr, "torpor-keeper: %s (--help lists the flags)\n",
        (!rest.ok() ? rest.status()
                    : InvalidArgument("BAD_FLAG",
                                      "--socket, --journal and the daemon's command are needed"))
            .ToString()
            .c_str());
    return 2;
  }
  options.command = *std::move(rest);
  options.command.push_back("--keeper=" + options.socket);
  RaiseDescriptorLimit();
  const auto server = KeeperServer::Create(options, ServiceManager::FromEnvironment());
  if (!server.ok()) {
    std::fprintf(stderr, "torpor-keeper: %s\n", server.status().ToString().c_str());
    return 1;
  }
  return (*server)->Run();
}

}  // namespace
}  // namespace torpor::keeper

int main(int argc, char** argv) { return torpor::keeper::Main({argv + 1, argv + argc}); }
