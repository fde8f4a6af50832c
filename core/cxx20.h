#pragma once
// Stops a compiler for an older C++ before it finds hundreds of mistakes.

#if __cplusplus < 202002L
#error "Mixtape needs C++20: compile with -std=c++20"
#include <a compiler for C++20>
#endif
