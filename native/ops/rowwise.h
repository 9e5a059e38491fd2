// The operations that act on each row alone.
#pragma once

#include "runtime/step_context.h"
#include "runtime/thread_pool.h"

namespace ramet {

// Takes this worker's rows through all nodes of a row-by-row segment, a few rows at a time. No barrier at the end.
void RunRowByRow(const Segment& segment, const StepContext& context, Worker& worker);

}  // namespace ramet
