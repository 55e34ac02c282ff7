// SPDX-License-Identifier: Apache-2.0
#include "bench/workload.h"

#include <sherd/base/error.h>

namespace sherd::bench {

const Workload& workload_named(const std::string& name) {
  static const std::vector<Workload> kWorkloads = {
      {.name = "wide",
       .layers = 6,
       .width = 768,
       .heads = 12,
       .sequence = 64,
       .batch = 1,
       .block_steps = 4},
      {.name = "small",
       .layers = 8,
       .width = 256,
       .heads = 4,
       .sequence = 128,
       .batch = 4,
       .block_steps = 4},
      {.name = "tiny",
       .layers = 4,
       .width = 128,
       .heads = 2,
       .sequence = 64,
       .batch = 4,
       .block_steps = 25},
  };
  std::string known;
  for (const auto& work : kWorkloads) {
    if (work.name == name) {
      return work;
    }
    known += (known.empty() ? "" : ", ") + work.name;
  }
  throw Error("[bench] --work: expected one of " + known + ", found " + name);
}

std::int64_t parameters_of(const Workload& work) {
  const auto c = work.width;
  // Two norms, c_attn, attn.c_proj, c_fc, mlp.c_proj, each with its bias.
  const auto block = 4 * c + (3 * c * c + 3 * c) + (c * c + c) +
      (4 * c * c + 4 * c) + (4 * c * c + c);
  const auto embeddings = (kVocabulary + work.sequence) * c;
  return work.layers * block + embeddings + 2 * c + kVocabulary * c;
}

std::vector<std::string> flags_of(const Workload& work) {
  return {"--layers",   std::to_string(work.layers),
          "--width",    std::to_string(work.width),
          "--heads",    std::to_string(work.heads),
          "--sequence", std::to_string(work.sequence),
          "--batch",    std::to_string(work.batch)};
}

}  // namespace sherd::bench
