// SPDX-License-Identifier: Apache-2.0
//
// Linked into test programs whose ranks all install the parameter key: if that is done once before
// ranks are forked, no rank has to write the table of every operator.
#include "autograd/param_key.h"

namespace sherd::test {
namespace {

[[maybe_unused]] const bool kInstalled = [] {
  autograd::install_param_key();
  return true;
}();

}  // namespace
}  // namespace sherd::test
