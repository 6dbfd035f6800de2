#ifndef TORPOR_DAEMON_LOG_H_
#define TORPOR_DAEMON_LOG_H_

#include <spdlog/fmt/fmt.h>

#include <string>
#include <string_view>
#include <utility>

#include "lib/base/status.h"

// The daemon's log, on standard error: log::Info("{} sleeps: {}", WorkerName(id), status).
// Thread-safe.
namespace torpor::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning", "error"; INVALID_ARGUMENT BAD_LOG_LEVEL.
Result<Level> ParseLevel(std::string_view name);
// Drops what is below `level`. Info until called.
void SetLevel(Level level);
bool Enabled(Level level);
// Writes OneLine(line).
void Write(Level level, std::string_view line);
// Control characters are escaped, what is beyond 4 KiB is cut.
std::string OneLine(std::string_view text);
// What has come from OneLine.
void WriteAsIs(Level level, std::string_view line);

template <typename... Args>
void Format(Level level, fmt::format_string<Args...> format, Args&&... args) {
  if (Enabled(level)) Write(level, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
void Debug(fmt::format_string<Args...> format, Args&&... args) {
  Format<Args...>(Level::kDebug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void Info(fmt::format_string<Args...> format, Args&&... args) {
  Format<Args...>(Level::kInfo, format, std::forward<Args>(args)...);
}
template <typename... Args>
void Warning(fmt::format_string<Args...> format, Args&&... args) {
  Format<Args...>(Level::kWarning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void Error(fmt::format_string<Args...> format, Args&&... args) {
  Format<Args...>(Level::kError, format, std::forward<Args>(args)...);
}

}  // namespace torpor::log

template <>
struct fmt::formatter<torpor::Status> : fmt::formatter<fmt::string_view> {
  template <typename Context>
  auto format(const torpor::Status& status, Context& context) const {
    return fmt::formatter<fmt::string_view>::format(status.ToString(), context);
  }
};

#endif  // TORPOR_DAEMON_LOG_H_
