#include "tests/bench/figures.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <set>

namespace torpor::bench {
namespace {

std::vector<double> Collect(const Row& row, const std::function<double(const Operation&)>& value) {
  std::vector<double> values;
  for (const Operation& operation : row.operations) values.push_back(value(operation));
  return values;
}

double Phase(const Row& row, const std::string& name) {
  return Median(Collect(row, [&](const Operation& operation) {
    const auto found = operation.phases_ms.find(name);
    return found == operation.phases_ms.end() ? 0 : found->second;
  }));
}

double OutsideMs(const Row& row) {
  return Median(Collect(
      row, [](const Operation& operation) { return operation.caller_ms - operation.total_ms; }));
}

double WorstMs(const Row& row) {
  double worst = 0;
  for (const Operation& operation : row.operations) worst = std::max(worst, operation.caller_ms);
  return worst;
}

}  // namespace

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[(values.size() - 1) / 2];
}

double Rounded(double value) { return std::round(value * 1e4) / 1e4; }

double MedianMs(const Row& row) {
  return Median(Collect(row, [](const Operation& operation) { return operation.caller_ms; }));
}

double MedianGbps(const Row& row, Bytes bytes) {
  const double ms = MedianMs(row);
  return ms > 0 ? static_cast<double>(bytes.value()) / ms / 1e6 : 0;
}

Json RowJson(const Row& row, Bytes bytes) {
  Json json;
  json["caller_ms"] = Rounded(MedianMs(row));
  json["worst_ms"] = Rounded(WorstMs(row));
  json["gbps"] = Rounded(MedianGbps(row, bytes));
  json["daemon_ms"] = Rounded(Median(Collect(row, [](const Operation& o) { return o.total_ms; })));
  std::set<std::string> phases;
  for (const Operation& operation : row.operations) {
    for (const auto& [name, ms] : operation.phases_ms) phases.insert(name);
    json["all_ms"].push_back(Rounded(operation.caller_ms));
  }
  for (const std::string& name : phases) json["phases_ms"][name] = Rounded(Phase(row, name));
  json["outside_ms"] = Rounded(OutsideMs(row));
  json["copied_bytes"] = static_cast<int64_t>(
      Median(Collect(row, [](const Operation& o) { return static_cast<double>(o.copied_bytes); })));
  return json;
}

void PrintHead(const std::string& title) {
  std::printf(
      "\n## %s\n\n"
      "| operation | ms | worst ms | GB/s | quiesce | digest | copy | handles | worker | outside "
      "|\n"
      "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
      title.c_str());
  std::fflush(stdout);
}

void PrintRow(const Row& row, Bytes bytes) {
  std::printf("| %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f |\n",
              row.name.c_str(), MedianMs(row), WorstMs(row), MedianGbps(row, bytes),
              Phase(row, "quiesce"), Phase(row, "digest"), Phase(row, "copy"),
              Phase(row, "handles"), Phase(row, "worker"), OutsideMs(row));
  std::fflush(stdout);
}

}  // namespace torpor::bench
