// SPDX-License-Identifier: Apache-2.0
//
// Gathers and reductions go on beside computation (T28), shown by order alone. A
// link holds the shards of a unit back until the layer before it has been
// computed, and the layer does not end before the link has been asked for them.
// In the same way it holds gradients back until backward has left the layer
// below. A step ends over such a link only if both go on at the same time;
// otherwise the two wait for each other until a deadline.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include "base/check.h"
#include "exchange/collective_exchange.h"
#include "exchange/observed_transport_testing.h"
#include "fsdp/fsdp_engine.h"
#include "support/fake_ranks.h"
#include "support/small_models.h"

namespace sherd::fsdp {
namespace {

// What has happened on one rank, in any thread.
class Happened {
 public:
  void note(const std::string& what) {
    const std::lock_guard lock(mu_);
    notes_.insert(what);
    changed_.notify_all();
  }
  // Whether it happened before the deadline; no wait after one that was in vain.
  bool wait_for(const std::string& what) {
    std::unique_lock lock(mu_);
    const bool seen = changed_.wait_for(lock, std::chrono::seconds(10), [&] {
      return notes_.contains(what) || in_vain_;
    });
    in_vain_ = in_vain_ || !seen;
    return notes_.contains(what);
  }

 private:
  std::mutex mu_;
  // A wait reads notes_; who adds one notifies before it lets go of mu_.
  std::condition_variable changed_;
  std::set<std::string> notes_;
  bool in_vain_ = false;
};

// What a message waits for, by its tag; empty: nothing. Notes "asked for ..." of
// those that wait.
using Until = std::function<std::string(int tag)>;

std::shared_ptr<world::Transport> holding(
    std::shared_ptr<world::Transport> inner, Happened& rank, Until until_of) {
  return std::make_shared<exchange::ObservedTransport>(
      std::move(inner),
      exchange::TransportObserver{
          .on_receive = [&rank, until_of = std::move(until_of)](
                            const exchange::ObservedMessage& message,
                            auto receive) -> std::unique_ptr<world::Transfer> {
            const auto until = until_of(message.tag);
            if (until.empty()) {
              return receive;
            }
            rank.note("asked for what follows " + until);
            const auto before = [&rank, until](const std::string& what) {
              return rank.wait_for(until)
                  ? Status()
                  : Status(
                        ErrorCode::kDeadlineExceeded,
                        what + " was waited for before " + until);
            };
            return std::make_unique<exchange::ObservedTransfer>(
                std::move(receive), before, nullptr);
          }});
}

// A rank's model, whose every layer tells where it is.
struct OverlapRank {
  // The units 0 to 4; the head is unit 5, the root.
  static constexpr int kLayers = 5;
  static constexpr std::int64_t kWidth = 8;
  static constexpr int kRanks = 2;

  explicit OverlapRank(test::FakeRank& self) {
    const auto held = [&](const std::string& name, auto unit_of) {
      return holding(
          self.network.transport(self.rank, name), happened,
          [this, name, unit_of](int tag) {
            const int unit = unit_of(tag);
            return step == 0 || unit < 1 || unit > kLayers
                ? ""
                : after(name, unit - 1);
          });
    };
    // Each unit has one flat, whose three tags message_unit_transport.cpp makes.
    auto exchange = exchange::make_collective_exchange(
        held(
            "gather",
            [](int tag) {
              return tag < exchange::kFlatTag ? -1
                                              : (tag - exchange::kFlatTag) / 3;
            }),
        held("reduce", [](int tag) { return tag; }));
    FsdpEngine::Options options;
    options.rank = self.rank;
    options.ranks = kRanks;
    engine = std::make_shared<FsdpEngine>(
        build_units(*model, kRanks), std::move(exchange), options);
    engine->start();
  }

  // "gather 2 of step 1": layer 2 has been computed; "reduce 2 of step 1": so
  // have its gradients.
  std::string after(const std::string& name, int layer) const {
    return str(name, " ", layer, " of step ", step.load());
  }

  // The layer ends when the link has been asked for the next one.
  void end(const std::string& name, int layer) {
    const auto mine = after(name, layer);
    if (step > 0) {
      EXPECT_TRUE(happened.wait_for("asked for what follows " + mine)) << mine;
    }
    happened.note(mine);
  }

  torch::Tensor loss(torch::Tensor x) {
    x.requires_grad_();
    for (int i = 0; i < kLayers; ++i) {
      // This gradient is known when backward has left the layer.
      x.register_hook([this, i](const torch::Tensor& gradient) {
        end("reduce", i);
        return gradient;
      });
      x = model->layer(static_cast<std::size_t>(i)).forward(x).clamp(-2, 2);
      end("gather", i);
    }
    return model->head(x).sum();
  }

  test::Chain model{kLayers, kWidth};
  std::atomic<int> step{0};
  Happened happened;
  std::shared_ptr<FsdpEngine> engine;
};

TEST(Overlap, T28AStepEndsOverALinkThatWaitsForItsComputation) {
  test::run_fake_ranks(
      OverlapRank::kRanks,
      {.seed = 3, .delay_max = std::chrono::microseconds(100)},
      [](test::FakeRank& self) {
        OverlapRank mine(self);
        for (int step = 0; step < 3; ++step) {
          mine.step = step;  // The first one knows nothing of what comes.
          mine.loss(test::integer_rows(step, self.rank, OverlapRank::kWidth))
              .backward();
          mine.engine->publish();
        }
        EXPECT_EQ(mine.engine->report().plan.steps_planned, 2);
        self.barrier.arrive_and_wait();
      });
}

}  // namespace
}  // namespace sherd::fsdp
