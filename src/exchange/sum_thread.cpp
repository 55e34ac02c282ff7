// SPDX-License-Identifier: Apache-2.0
#include "exchange/sum_thread.h"

#include "base/check.h"

namespace sherd::exchange {

bool sums_have_a_thread(
    const HostLoad& load, const EnvironmentLookup& environment) {
  const auto text = environment("SHERD_SUM_THREAD").value_or("auto");
  SHERD_CHECK(
      text == "auto" || text == "on" || text == "off",
      "[exchange] SHERD_SUM_THREAD is \"", text,
      "\"; expected auto, on or off");
  return text == "auto" ? load.cores >= load.ranks * (load.threads + 1)
                        : text == "on";
}

}  // namespace sherd::exchange
