#include "daemon/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace torpor::log {
namespace {

spdlog::level::level_enum ToSpdlog(Level level) {
  switch (level) {
    case Level::kDebug:
      return spdlog::level::debug;
    case Level::kInfo:
      return spdlog::level::info;
    case Level::kWarning:
      return spdlog::level::warn;
    case Level::kError:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// Never destroyed: threads may log until the process ends.
spdlog::logger& Logger() {
  static spdlog::logger* const logger = [] {
    auto* made = new spdlog::logger("torpor", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("%Y-%m-%dT%H:%M:%S.%e%z %l %v");
    return made;
  }();
  return *logger;
}

// A name that a worker chose must not look like a line of its own, nor fill the disk.
constexpr size_t kLongestLine = 4096;

}  // namespace

// C1 in UTF-8 counts as control characters, too.
std::string OneLine(std::string_view text) {
  const auto byte = [text](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
  };
  std::string line;
  size_t i = 0;
  for (size_t width = 1; i < text.size(); i += width) {
    const unsigned char c = byte(i);
    const bool c1 = c == 0xc2 && byte(i + 1) >= 0x80 && byte(i + 1) < 0xa0;
    width = 1;
    if (c >= 0xc0 && !c1) {
      while (width < 4 && (byte(i + width) & 0xc0) == 0x80) ++width;
    }
    std::string shown(text.substr(i, width));
    if (c == '\n') {
      shown = "\\n";
    } else if (c == '\r') {
      shown = "\\r";
    } else if (c == '\t') {
      shown = "\\t";
    } else if (c < 0x20 || c == 0x7f) {
      shown = fmt::format("\\x{:02x}", c);
    } else if (c1) {
      width = 2;
      shown = fmt::format("\\u{:04x}", byte(i + 1));
    }
    if (line.size() + shown.size() > kLongestLine) break;
    line += shown;
  }
  if (i < text.size()) line += fmt::format(" [cut: {} more bytes]", text.size() - i);
  return line;
}

Result<Level> ParseLevel(std::string_view name) {
  if (name == "debug") return Level::kDebug;
  if (name == "info") return Level::kInfo;
  if (name == "warning") return Level::kWarning;
  if (name == "error") return Level::kError;
  return InvalidArgument("BAD_LOG_LEVEL", "a log level is debug, info, warning or error, not \"" +
                                              std::string(name) + "\"");
}

void SetLevel(Level level) { Logger().set_level(ToSpdlog(level)); }

bool Enabled(Level level) { return Logger().should_log(ToSpdlog(level)); }

void Write(Level level, std::string_view line) {
  if (Enabled(level)) WriteAsIs(level, OneLine(line));
}

void WriteAsIs(Level level, std::string_view line) {
  Logger().log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

}  // namespace torpor::log
