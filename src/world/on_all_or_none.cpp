// SPDX-License-Identifier: Apache-2.0
#include "world/on_all_or_none.h"

#include <exception>
#include <vector>

#include "base/check.h"
#include "base/status.h"

namespace sherd::world {

void on_all_or_none(
    const World& world,
    const std::string& part,
    const std::string& purpose,
    const std::function<void()>& action) {
  std::exception_ptr failure;
  try {
    action();
  } catch (...) {
    failure = std::current_exception();
  }
  std::vector<std::string> reasons;
  try {
    reasons = world.all_gather_texts(failure ? reason_of(failure) : "");
  } catch (const Error&) {
    if (!failure) {
      throw;
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  for (std::size_t rank = 0; rank < reasons.size(); ++rank) {
    SHERD_CHECK(
        reasons[rank].empty(), part, " rank ", rank, " cannot ", purpose, ": ",
        reasons[rank]);
  }
}

}  // namespace sherd::world
