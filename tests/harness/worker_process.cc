#include "tests/harness/worker_process.h"

#include <filesystem>
#include <sstream>
#include <utility>

namespace torpor {
namespace {

Code CodeOf(const std::string& name) {
  for (int code = 1; code <= 16; ++code) {
    if (CodeName(static_cast<Code>(code)) == name) return static_cast<Code>(code);
  }
  return Code::kInternal;
}

}  // namespace

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::Start(const std::string& program) {
  ChildProcess::Options options;
  options.command = {std::filesystem::absolute(program)};
  TORPOR_ASSIGN_OR_RETURN(auto process, ChildProcess::Start(options));
  return std::unique_ptr<WorkerProcess>(new WorkerProcess(std::move(process)));
}

Result<std::unique_ptr<WorkerProcess>> WorkerProcess::Connect(const std::string& worker_socket,
                                                              const std::string& name,
                                                              const std::string& quiesce,
                                                              const std::string& more_options,
                                                              const std::string& program) {
  TORPOR_ASSIGN_OR_RETURN(auto worker, Start(program));
  TORPOR_ASSIGN_OR_RETURN(
      const std::string answer,
      worker->Ask("connect driver=host socket=" + worker_socket + " name=" + name +
                  " quiesce=" + quiesce + (more_options.empty() ? "" : " " + more_options)));
  worker->id_ = "w-" + WordOf(answer, "worker");
  return worker;
}

Result<std::string> WorkerProcess::Ask(const std::string& command, Duration patience) {
  TORPOR_RETURN_IF_ERROR(Tell(command));
  return ReadAnswer(patience);
}

Result<std::string> WorkerProcess::ReadAnswer(Duration patience) {
  TORPOR_ASSIGN_OR_RETURN(const std::string line, process_->ReadLine(patience));
  std::istringstream words(line);
  std::string first;
  words >> first;
  if (first == "ok") return line.size() > 3 ? line.substr(3) : std::string();
  std::string code;
  std::string reason;
  std::string message;
  words >> code >> reason >> std::ws;
  std::getline(words, message);
  return Status(CodeOf(code), reason, message);
}

Result<std::string> WorkerProcess::Allocate(const std::string& tag, const std::string& size,
                                            int seed) {
  TORPOR_ASSIGN_OR_RETURN(const std::string answer,
                          Ask("alloc " + tag + " " + size + " " + std::to_string(seed)));
  return answer.substr(0, answer.find(' '));
}

std::string WordOf(const std::string& answer, const std::string& key) {
  std::istringstream words(answer);
  for (std::string word; words >> word;) {
    if (word.rfind(key + "=", 0) == 0) return word.substr(key.size() + 1);
  }
  return "";
}

}  // namespace torpor
