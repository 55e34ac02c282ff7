// SPDX-License-Identifier: Apache-2.0
#include "ft/protocol/model_testing.h"

#include <deque>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ft/protocol/model_world_testing.h"

namespace sherd::ft {
namespace {

// What is left out of the search: one long breath from a state, without faults.
bool goes_on(const Model& model, State state) {
  constexpr int kRounds = 40;
  state.crashes = 0;
  state.coordinator_crashes = 0;
  for (int round = 0; round < kRounds && !model.done(state); ++round) {
    // Everything that can happen does, in turn, so that nothing is put off.
    constexpr int kTurns = 200;
    std::size_t turn = 0;
    for (int i = 0; i < kTurns && !model.done(state); ++i) {
      const auto choices = model.progress(state, /*beats=*/true);
      if (choices.empty()) {
        break;
      }
      choices[turn++ % choices.size()].action(state);
    }
    state.now += kExpiry;
    if (state.coordinator) {
      state.timeouts = 1;
      State asked = state;
      const auto choices = model.choices(asked);
      if (!choices.empty() && choices.back().name == "a long time passes") {
        choices.back().action(state);
      }
    }
  }
  return model.done(state);
}

}  // namespace

namespace {

// Breadth first, so that the way to a violation is a shortest one.
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
    std::uint32_t choice = 0;  // Of the parent's.
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
      if (!goes_on(model_, state)) {
        last_ = {parent, choice};
        result_.stuck_at = result_.stuck == 0 ? way("stuck") : result_.stuck_at;
        ++result_.stuck;
      }
    }
    open_.emplace_back(at, std::move(state));
  }

  // The names of the choices that lead there, made once more.
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

}  // namespace sherd::ft
