#ifndef TORPOR_CLIENT_CTL_COMPLETION_H_
#define TORPOR_CLIENT_CTL_COMPLETION_H_

#include <string>
#include <vector>

namespace torpor::ctl {

// A script for "bash", "zsh" or "fish" that completes command lines by `torporctl __complete`.
std::string CompletionScript(const std::string& shell);

// What daemons say of themselves, for completion.
struct KnownNames {
  std::vector<std::string> devices;
  std::vector<std::string> workers;  // ids and names
  std::vector<std::string> tags;
  std::vector<std::string> reservations;  // ids
};

// What may stand in place of the last of `words`, which follow the program's name: each as the
// whole word, where it is known with a tab and what it means.
std::vector<std::string> Complete(const std::vector<std::string>& words, const KnownNames& names);

// Asks the daemons that the words mean, briefly. Those that do not answer are left out.
KnownNames AskForNames(const std::vector<std::string>& words);

}  // namespace torpor::ctl

#endif  // TORPOR_CLIENT_CTL_COMPLETION_H_
