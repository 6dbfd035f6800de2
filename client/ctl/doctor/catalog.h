#ifndef TORPOR_CLIENT_CTL_DOCTOR_CATALOG_H_
#define TORPOR_CLIENT_CTL_DOCTOR_CATALOG_H_

#include <string>
#include <vector>

namespace torpor::ctl::doctor {

// One check: its name stands in docs/doctor.md and does not change.
struct Check {
  std::string group;
  std::string name;
  std::string why;  // it matters to Torpor
};

// All of them, in the order of the report: those of a group stand together.
const std::vector<Check>& Catalog();

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_CATALOG_H_
