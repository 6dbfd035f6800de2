// torpord: owns the memory of one device. docs/reference.md has its flags.

#include "daemon/torpord.h"

int main(int argc, char** argv) { return torpor::RunTorpord({argv + 1, argv + argc}); }
