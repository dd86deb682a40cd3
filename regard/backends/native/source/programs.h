// What programs.cpp needs of entry.cpp.
#pragma once
#include "regard_native.h"

int32_t check_call(const rg_call *);  // RG_OK, or what is wrong
bool has_wide_registers();            // whether this processor has those of 512 bits
bool has_kernel();
