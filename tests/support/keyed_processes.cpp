// SPDX-License-Identifier: Apache-2.0
//
// Linked into test programs whose ranks all install the parameter key: done once
// before ranks are forked, it costs no rank the writing of every operator's table.
#include "autograd/param_key.h"

namespace sherd::test {
namespace {

[[maybe_unused]] const bool kInstalled = [] {
  autograd::install_param_key();
  return true;
}();

}  // namespace
}  // namespace sherd::test
