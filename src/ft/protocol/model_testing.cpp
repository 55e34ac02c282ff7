// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/model_testing.h"

#include <algorithm>
#include <deque>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ft/protocol/model_world_testing.h"

namespace sherd::ft {
namespace {

// Whether these replicas can make a step by themselves. A leaving replica goes when its step is
// made; if no replica holds anything, somebody has to bring the state.
bool are_enough(const ModelOptions& options, const State& state) {
  const auto& all = state.replicas;
  const auto stay = std::count_if(all.begin(), all.end(), [](const auto& one) {
    return one->alive && !one->protocol.report().leaving;
  });
  return stay >= std::max(1, options.replicas_min) &&
      std::any_of(all.begin(), all.end(), [](const auto& one) {
           return one->alive && one->protocol.held();
         });
}

// Runs on from a state for long, without faults and outside the search. No replica restarts if
// enough of them live.
bool goes_on(const Model& model, const ModelOptions& options, State state) {
  constexpr int kRounds = 40;
  state.left.crashes = 0;
  state.left.coordinator_crashes = 0;
  state.former.reset();
  std::uint64_t turn = 0;
  for (int round = 0; round < kRounds && !model.done(state); ++round) {
    // Everything that can happen does, so that nothing is delayed forever.
    constexpr int kTurns = 200;
    for (int i = 0; i < kTurns && !model.done(state); ++i) {
      // In the second half nothing new is sent, and timeouts end.
      auto choices = model.progress(state, /*beats=*/i < kTurns / 2);
      // If the log is lost, all replicas that were ever in the run are needed.
      const bool is_lost =
          options.log_losses > 0 && std::as_const(state).disk->past.empty();
      if (!is_lost && are_enough(options, state)) {
        std::erase_if(choices, [](const Model::Choice& one) {
          return one.name.ends_with(" starts anew");
        });
      }
      if (choices.empty()) {
        break;
      }
      choices[mix64(turn++) % choices.size()].action(state);
    }
    model.wait(state);
  }
  return model.done(state);
}

// Searches breadth first, so that the path to a violation is as short as possible.
class Search {
 public:
  explicit Search(const ModelOptions& options)
      : options_(options), model_(options) {}

  ModelResult run() {
    try {
      enter(model_.first(), 0, 0);
      while (!open_.empty() && result_.states < options_.states_max) {
        const auto [at, state] = std::move(open_.front());
        open_.pop_front();
        expand(at, state);
      }
      result_.complete = open_.empty();
    } catch (const Violation& violation) {
      result_.violation = way(violation.what);
    } catch (const Error& error) {
      result_.violation = way(error.what());
    }
    return result_;
  }

 private:
  struct Node {
    std::uint32_t parent = 0;
    std::uint32_t choice = 0;  // The choice made in the parent.
  };

  void expand(std::uint32_t at, const State& state) {
    const auto choices = model_.choices(state);
    for (std::uint32_t c = 0; c < choices.size(); ++c) {
      last_ = {at, c};
      State next = state;
      choices[c].action(next);
      ++result_.transitions;
      model_.check(next);
      const auto before = state.tip.step;
      result_.commits_seen += next.tip.step > before ? 1 : 0;
      result_.rollbacks_seen += next.tip.step < before ? 1 : 0;
      enter(std::move(next), at, c);
    }
  }

  void enter(State state, std::uint32_t parent, std::uint32_t choice) {
    if (!seen_.insert(model_.fingerprint(state)).second) {
      return;
    }
    const auto at = static_cast<std::uint32_t>(nodes_.size());
    nodes_.push_back({parent, choice});
    ++result_.states;
    if (options_.progress_every > 0 &&
        result_.states % options_.progress_every == 0) {
      ++result_.asked;
      if (!goes_on(model_, options_, state)) {
        last_ = {parent, choice};
        result_.stuck_at = result_.stuck == 0 ? way("stuck") : result_.stuck_at;
        ++result_.stuck;
      }
    }
    open_.emplace_back(at, std::move(state));
  }

  // The names of the choices that lead there, found by repeating them.
  std::string way(const std::string& what) const {
    std::vector<std::uint32_t> taken = {last_.choice};
    for (auto at = last_.parent; at != 0; at = nodes_[at].parent) {
      taken.push_back(nodes_[at].choice);
    }
    std::string text = what + "\n";
    State state = model_.first();
    for (auto choice = taken.rbegin(); choice != taken.rend(); ++choice) {
      const auto choices = model_.choices(state);
      text += "  " + choices[*choice].name + "\n";
      if (choice + 1 != taken.rend()) {
        choices[*choice].action(state);
      }
    }
    return text;
  }

  const ModelOptions options_;
  const Model model_;
  ModelResult result_;
  std::unordered_set<Fingerprint, FingerprintHash> seen_;
  std::vector<Node> nodes_;
  std::deque<std::pair<std::uint32_t, State>> open_;
  Node last_;
};

}  // namespace

ModelResult check_model(const ModelOptions& options) {
  return Search(options).run();
}

ModelResult walk_model(
    const ModelOptions& options,
    std::uint64_t seed,
    std::int64_t walks,
    std::int64_t length) {
  // One choice in this many may be a fault, so that faults spread over the whole path.
  constexpr std::uint64_t kFaultEvery = 12;
  // A partition lasts while the other replicas make this many choices.
  constexpr std::uint64_t kCut = 40;
  const Model model(options);
  ModelResult result;
  std::uint64_t drawn = mix64(seed);
  const auto draw = [&](std::uint64_t below) {
    drawn = mix64(drawn);
    return drawn % below;
  };
  std::string way;
  try {
    for (std::int64_t walk = 0; walk < walks; ++walk) {
      State state = model.first();
      way.clear();
      for (std::int64_t i = 0; i < length && !model.settled(state); ++i) {
        auto choices = draw(kFaultEvery) == 0 ? model.choices(state)
                                              : model.progress(state, true);
        if (choices.empty()) {
          break;
        }
        const auto& choice = choices[draw(choices.size())];
        if (choice.name.ends_with(" is reached again") && draw(kCut) != 0) {
          continue;
        }
        way += "  " + choice.name + "\n";
        const auto before = state.tip.step;
        choice.action(state);
        ++result.states;
        model.check(state);
        result.commits_seen += state.tip.step > before ? 1 : 0;
        result.rollbacks_seen += state.tip.step < before ? 1 : 0;
      }
      ++result.asked;
      if (!goes_on(model, options, state)) {
        ++result.stuck;
        result.stuck_at = way;
      }
    }
    result.complete = true;
  } catch (const Violation& violation) {
    result.violation = violation.what + "\n" + way;
  } catch (const Error& error) {
    result.violation = error.what() + ("\n" + way);
  }
  return result;
}

}  // namespace sherd::ft
