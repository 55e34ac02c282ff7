// SPDX-License-Identifier: Apache-2.0
#include <sherd/sherd.h>

int train() {
  auto world = sherd::World::from_environment();  // RANK, WORLD_SIZE, ...
  auto model = sherd::models::Gpt(sherd::models::GptConfig{});  // Any module.
  auto fsdp = sherd::fully_shard(*model, world);
  auto adamw = sherd::AdamW(fsdp.named_parameters(), {.learning_rate = 1e-3});
  auto corpus = sherd::data::Corpus("text/");
  auto batches = sherd::data::GlobalBatches(
      corpus,
      {.batch = 12,
       .sequence = 128,
       .rank = world.rank(),
       .world_size = world.size()});
  for (int step = 0; step < 200; ++step) {
    auto batch = batches.next();
    auto loss = model->loss(batch.inputs, batch.targets);  // As on one device.
    loss.backward();
    fsdp.clip_grad_norm(1.0);
    adamw.step();
    adamw.zero_grad();
  }
  fsdp.close();
  world.close();
  return 0;
}

int main(int argc, char** argv) { return sherd::run_main(argc, argv, train); }
