#include "tests/bench/role.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <thread>
#include <utility>

#include "lib/base/mutex.h"
#include "lib/cuda/cuda_driver.h"
#include "lib/cuda/host_driver.h"

namespace torpor::bench {

Result<std::unique_ptr<Driver>> OpenRoleDriver(const std::string& kind, Bytes total) {
  if (kind == "host") {
    HostDriver::DeviceOptions options;
    options.uuid = "role";
    options.total = total;
    TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, HostDriver::CreateDevice(options));
    return driver;
  }
  TORPOR_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, CudaDriver::OpenDevice({}));
  return driver;
}

void Say(const Result<std::string>& answer) {
  if (answer.ok()) {
    std::cout << "ok " << *answer << std::endl;
    return;
  }
  std::string text = answer.status().message();
  std::replace(text.begin(), text.end(), '\n', ' ');
  std::cout << "error " << answer.status().reason() << " " << text << std::endl;
}

int AnswerLines(const AnswerLine& answer) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    if (!words.empty()) Say(answer(words));
  }
  return 0;
}

Result<std::unique_ptr<HostMemory>> HostMemory::Map(Bytes size) {
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const data = ::mmap(nullptr, size.size(), PROT_READ | PROT_WRITE, flags, -1, 0);
  if (data == MAP_FAILED) return ErrnoStatus(errno, "map " + FormatBytes(size));
  ::madvise(data, size.size(), MADV_HUGEPAGE);
  return std::unique_ptr<HostMemory>(new HostMemory(static_cast<char*>(data), size));
}

HostMemory::~HostMemory() { ::munmap(data_, size_.size()); }

void HostMemory::Touch() {
  static constexpr Bytes kPiece = MiB(64);
  const int64_t pieces = (size_.value() + kPiece.value() - 1) / kPiece.value();
  (void)InParallel(ProcessorCount(), pieces, [this](int, int64_t i) {
    const int64_t end = std::min(size_.value(), (i + 1) * kPiece.value());
    for (int64_t at = i * kPiece.value(); at < end; at += 4096) {
      const_cast<volatile char*>(data_)[at] = 1;
    }
    return Status::Ok();
  });
}

Status InParallel(int threads, int64_t count,
                  const std::function<Status(int thread, int64_t i)>& body) {
  std::atomic<int64_t> next = 0;
  Mutex mutex;
  Status first;
  const auto run = [&](int thread) {
    for (int64_t i = next++; i < count; i = next++) {
      Status status = body(thread, i);
      if (status.ok()) continue;
      MutexLock lock(mutex);
      if (first.ok()) first = std::move(status);
      next = count;
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < std::min<int64_t>(threads, count); ++i) others.emplace_back(run, i);
  run(0);
  for (std::thread& thread : others) thread.join();
  return first;
}

int ProcessorCount() { return std::max(static_cast<int>(std::thread::hardware_concurrency()), 1); }

Result<std::unique_ptr<RoleProcess>> RoleProcess::Start(const std::string& role,
                                                        const std::vector<std::string>& arguments) {
  ChildProcess::Options options;
  options.command = {"/proc/self/exe", "role", role};
  options.command.insert(options.command.end(), arguments.begin(), arguments.end());
  TORPOR_ASSIGN_OR_RETURN(auto process, ChildProcess::Start(options));
  return std::unique_ptr<RoleProcess>(new RoleProcess(role, std::move(process)));
}

Result<std::string> RoleProcess::Ask(const std::string& line, Duration patience) {
  TORPOR_RETURN_IF_ERROR(process_->WriteLine(line));
  return ReadAnswer(patience);
}

Result<std::string> RoleProcess::ReadAnswer(Duration patience) {
  const Result<std::string> line = process_->ReadLine(patience);
  if (!line.ok())
    return Status(line.status().code(), line.status().reason(),
                  role_ + ": " + line.status().message());
  if (line->rfind("ok", 0) == 0) return line->size() > 3 ? line->substr(3) : std::string();
  return Internal("ROLE_FAILED", role_ + ": " + *line);
}

Status RoleProcess::Stop() {
  process_->CloseInput();
  TORPOR_ASSIGN_OR_RETURN(const int status, process_->Wait());
  if (status == 0) return Status::Ok();
  return Internal("ROLE_FAILED", role_ + " ended with " + std::to_string(status));
}

double NumberOf(const std::string& answer, const std::string& key) {
  std::istringstream words(answer);
  for (std::string word; words >> word;) {
    if (word.rfind(key + "=", 0) == 0) return std::strtod(word.c_str() + key.size() + 1, nullptr);
  }
  return -1;
}

}  // namespace torpor::bench
