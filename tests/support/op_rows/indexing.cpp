// Indexing and order.
#include "tests/support/op_rows/rows.h"

namespace mixtape::tests {

std::vector<OpCase> indexing() { return {}; }

}  // namespace mixtape::tests
