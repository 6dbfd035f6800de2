#ifndef TORPOR_TESTS_BENCH_FIGURES_H_
#define TORPOR_TESTS_BENCH_FIGURES_H_

#include <string>
#include <vector>

#include "lib/base/units.h"
#include "nlohmann/json.hpp"
#include "tests/bench/bench_daemon.h"

namespace torpor::bench {

using Json = nlohmann::ordered_json;

// The same operation done several times.
struct Row {
  std::string name;
  std::vector<Operation> operations;
};

// With an even count the lower one of the two in the middle; 0 without any.
double Median(std::vector<double> values);
double MedianMs(const Row& row);
// GB/s (1e9 bytes) of `bytes` in the row's median time; 0 without operations.
double MedianGbps(const Row& row, Bytes bytes);

// Median, worst and every time at the caller, medians of the daemon's phases, and what is outside
// of the daemon's own total.
Json RowJson(const Row& row, Bytes bytes);

// The table of rows on standard output, which PrintRow goes on with.
void PrintHead(const std::string& title);
void PrintRow(const Row& row, Bytes bytes);

// Rounded, as nobody wants to read fifteen digits.
double Rounded(double value);

}  // namespace torpor::bench

#endif  // TORPOR_TESTS_BENCH_FIGURES_H_
