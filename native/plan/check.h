// The shape rules of `ramet/plan/ops.py`, again: a plan from outside must not make a kernel leave its arrays.
#pragma once

#include <vector>

#include "plan/plan.h"

namespace ramet {

// Raises if `op` breaks a rule. `computed[v]` says which values exist before it, and is updated with its outputs.
void CheckOp(const Plan& plan, const Op& op, std::vector<bool>& computed);

}  // namespace ramet
