#ifndef TORPOR_CLIENT_CTL_DOCTOR_DOCTOR_H_
#define TORPOR_CLIENT_CTL_DOCTOR_DOCTOR_H_

#include <string>

#include "lib/base/clock.h"

namespace torpor::ctl::doctor {

struct Options {
  std::string runtime_dir;  // empty: the one in which other commands find daemons
  std::string device;       // of the daemons only this one; empty: all
  bool json = false;
  Duration limit = seconds(15);  // for each question that may not be answered
};

// Looks at this node and prints what is right and wrong with it, without changing anything. Needs
// no daemon, no GPU and no rights. True: there is no problem. Before the process has a second
// thread.
bool Examine(const Options& options);

}  // namespace torpor::ctl::doctor

#endif  // TORPOR_CLIENT_CTL_DOCTOR_DOCTOR_H_
