#ifndef TORPOR_CLIENT_CTL_DOCTOR_REPORT_H_
#define TORPOR_CLIENT_CTL_DOCTOR_REPORT_H_

#include <string>

#include "client/ctl/doctor/finding.h"

namespace torpor::ctl::doctor {

// For people: by group, at most 80 columns, commands and long words excepted. `version`: of this
// program.
std::string PrintText(const Findings& findings, const std::string& version);
// One object, as docs/doctor.md has it.
std::string PrintJson(const Findings& findings, const std::string& version);

bool HasProblem(const Findings& findings);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_REPORT_H_
