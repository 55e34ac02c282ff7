// SPDX-License-Identifier: Apache-2.0
// Sends the whole tensors of a state to rank 0, and from rank 0 to all ranks.
#include <map>
#include <set>
#include <vector>

#include <sherd/ckpt/checkpoint.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/status.h"
#include "ckpt/dtypes.h"
#include "ckpt/save_protocol.h"
#include "ckpt/state_access.h"
#include "world/transport.h"

namespace sherd {
namespace {

using ckpt::TensorKey;
using ckpt::TensorPiece;
using LoadTarget = CheckpointAccess::LoadTarget;

constexpr const char* kGathering = "gathering a full state";
constexpr const char* kScattering = "scattering a full state";
constexpr int kTag = 0;  // Messages between two ranks keep their order.

// A piece and the rank that has it.
struct PieceSource {
  int rank = 0;
  std::size_t piece = 0;  // Index in the rank's pieces.
  std::string dtype;
  std::vector<std::int64_t> shape;  // Of the whole tensor.
  plan::ElementRange range;
};
using Sources = std::map<TensorKey, std::vector<PieceSource>>;

std::string text_of(const std::vector<TensorPiece>& pieces) {
  auto json = nlohmann::json::array();
  for (const auto& piece : pieces) {
    json.push_back(
        {piece.section, piece.name, ckpt::name_of(piece.elements.scalar_type()),
         piece.shape, piece.range.begin, piece.range.end});
  }
  return json.dump();
}

// Parses the texts of text_of(), given by rank.
Sources sources_of(const std::vector<std::string>& texts) {
  Sources sources;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const auto json = nlohmann::json::parse(texts[rank]);
    for (std::size_t i = 0; i < json.size(); ++i) {
      const auto& piece = json[i];
      sources[{piece[0].get<std::string>(), piece[1].get<std::string>()}]
          .push_back(
              {.rank = static_cast<int>(rank),
               .piece = i,
               .dtype = piece[2].get<std::string>(),
               .shape = piece[3].get<std::vector<std::int64_t>>(),
               .range = {
                   piece[4].get<std::int64_t>(),
                   piece[5].get<std::int64_t>()}});
    }
  }
  return sources;
}

Sources all_gather_sources(
    const ckpt::CheckpointRanks& ranks,
    const std::vector<TensorPiece>& mine,
    const char* what) {
  return sources_of(ranks.gather(text_of(mine), what).value());
}

std::shared_ptr<world::Transport> connect(const World& world) {
  return world.size() == 1 ? nullptr
                           : world::make_c10d_transport(
                                 world, str("ckpt/full/", world.next_number()),
                                 Mesh(world).shard_ranks());
}

// ---- from all ranks to rank 0 ----

// Every rank gets the same result.
void check(const Sources& sources) {
  for (const auto& [key, pieces] : sources) {
    const auto& first = pieces.front();
    std::int64_t elements = 0;
    for (const auto& piece : pieces) {
      SHERD_CHECK(
          piece.dtype == first.dtype && piece.shape == first.shape, "[ckpt] ",
          key.text(), ": expected the same of all ranks, found ", first.dtype,
          " ", at::IntArrayRef(first.shape), " on rank ", first.rank, " and ",
          piece.dtype, " ", at::IntArrayRef(piece.shape), " on rank ",
          piece.rank);
      elements += piece.range.numel();
    }
    SHERD_CHECK(
        elements == ckpt::numel_of(first.shape), "[ckpt] ", key.text(),
        ": expected ranks to hold ", ckpt::numel_of(first.shape),
        " elements together, found ", elements);
  }
}

void send(
    world::Transport& via,
    int rank,
    const std::vector<TensorPiece>& mine,
    const std::vector<PieceSource>& sources) {
  for (const auto& source : sources) {
    if (source.rank == rank) {
      via.send(mine[source.piece].elements.cpu(), 0, kTag)
          ->wait(kGathering)
          .throw_if_failed();
    }
  }
}

// On rank 0. `via` is null if there are no others.
at::Tensor receive(
    world::Transport* via,
    const std::vector<TensorPiece>& mine,
    const std::vector<PieceSource>& sources) {
  const at::NoGradGuard no_grad;  // Reading is not a forward.
  const auto& first = sources.front();
  auto whole = at::empty(first.shape, *ckpt::dtype_named(first.dtype));
  for (const auto& source : sources) {
    const auto part =
        whole.view({-1}).narrow(0, source.range.begin, source.range.numel());
    if (source.rank == 0) {
      part.copy_(mine[source.piece].elements);
    } else {
      via->receive(part, source.rank, kTag)->wait(kGathering).throw_if_failed();
    }
  }
  return whole;
}

// If a visit throws, all other messages are still received. If there is no memory for a tensor, the
// ranks that wait for this one learn it.
Status gather(
    world::Transport* via,
    int rank,
    const std::vector<TensorPiece>& mine,
    const Sources& all,
    const FullTensorVisitor& visit) {
  Status visited;
  try {
    for (const auto& [key, sources] : all) {
      if (rank != 0) {
        send(*via, rank, mine, sources);
        continue;
      }
      const auto whole = receive(via, mine, sources);
      if (visited.ok()) {
        visited = status_of(
            [&, &key = key] { visit(key.section, key.name, whole); },
            ErrorCode::kFailedPrecondition);
      }
    }
  } catch (const std::exception& error) {
    if (via != nullptr) {
      via->abandon(Status(ErrorCode::kUnavailable, error.what()));
    }
    throw;
  }
  return visited;
}

// ---- from rank 0 to all ranks ----

// A state of tensors that are whole on one rank. Throws Error for what cannot be saved.
CheckpointState state_of(const FullState& full) {
  CheckpointState state;
  for (const auto& [section, tensors] : full) {
    state.add(section, {tensors.begin(), tensors.end()});
  }
  return state;
}

std::vector<TensorPiece> pieces_of(const std::vector<LoadTarget>& targets) {
  std::vector<TensorPiece> pieces;
  for (const auto& target : targets) {
    const auto& shard = target.shard;
    pieces.push_back(
        {.section = target.section,
         .name = shard.name,
         .shape = shard.shape,
         .range = range_of(shard),
         .elements = shard.elements});
  }
  return pieces;
}

// The tensors that rank 0 has.
struct Offer {
  std::set<std::string> sections;
  Sources tensors;
  // Those of which it has state of an optimizer, and other keys.
  std::set<TensorKey> parameters;

  // Whether a job's optimizer needs state of a parameter: it is there, or nothing of its section is.
  bool needs_state_of(const TensorKey& parameter) const {
    return !sections.contains(parameter.section) ||
        parameters.contains(parameter);
  }
};

std::string text_of(
    const FullState& full, const std::vector<LoadTarget>& tensors) {
  auto sections = nlohmann::json::array();
  for (const auto& [section, of_section] : full) {
    sections.push_back(section);
  }
  return nlohmann::json::array({sections, text_of(pieces_of(tensors))}).dump();
}

Offer offer_of(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  Offer offer{
      .sections = json[0].get<std::set<std::string>>(),
      .tensors = sources_of({json[1].get<std::string>()}),
      .parameters = {}};
  offer.parameters = CheckpointAccess::parameters_of(offer.tensors);
  return offer;
}

// Every rank comes to the same result, save in `bytes_read`.
LoadReport compare_names(
    const Sources& wanted,
    const Offer& offer,
    const CheckpointState& state,
    bool strict) {
  const auto required = CheckpointAccess::required_names(state);
  LoadReport report;
  for (const auto& [key, sources] : wanted) {
    const bool needed = required.contains(key) ||
        offer.needs_state_of(CheckpointAccess::parameter_of(key));
    if (needed && !offer.tensors.contains(key)) {
      report.missing.push_back(key.text());
    }
  }
  for (const auto& [key, sources] : offer.tensors) {
    if (!wanted.contains(key) && !required.contains(key) &&
        !CheckpointAccess::is_generator(state, key) &&
        !(strict && CheckpointAccess::first_of_tied(state, key))) {
      report.unexpected.push_back(key.text());
    }
  }
  return report;
}

// A plain model offers a tied parameter under each of its names.
void compare_tied(
    const std::vector<LoadTarget>& tensors, const CheckpointState& state) {
  for (const auto& further : tensors) {
    const auto first = CheckpointAccess::first_of_tied(state, further.key());
    for (const auto& tensor : tensors) {
      if (first && tensor.key() == *first) {
        CheckpointAccess::check_tied(
            "the full state", further.key(), *first,
            further.shard.elements.equal(tensor.shard.elements));
      }
    }
  }
}

void check(const Sources& wanted, const Offer& offer) {
  for (const auto& [key, sources] : wanted) {
    const auto found = offer.tensors.find(key);
    for (const auto& source : sources) {
      if (found == offer.tensors.end()) {
        continue;
      }
      const auto& whole = found->second.front();
      SHERD_CHECK(
          source.dtype == whole.dtype && source.shape == whole.shape, "[ckpt] ",
          key.text(), ": expected ", source.dtype, " ",
          at::IntArrayRef(source.shape), " as rank ", source.rank,
          " has it, found ", whole.dtype, " ", at::IntArrayRef(whole.shape),
          " in the full state");
    }
  }
}

struct FullStateScatter {
  // Returns what this rank could not take first; all other messages are still received.
  Status run(const Offer& offer) {
    const at::NoGradGuard no_grad;  // Writing is not a forward.
    for (const auto& [key, whole] : offer.tensors) {
      const auto sources = wanted.find(key);
      if (sources == wanted.end()) {
        continue;
      }
      if (rank == 0) {
        send(full.at(whole.front().piece).shard.elements, sources->second);
      } else {
        receive(sources->second);
      }
    }
    return taken;
  }

  // Clears an optimizer's state of parameters for which `full` has none, so that it is as before
  // its first update.
  void clear_rest(const Offer& offer, const std::vector<std::string>& missing) {
    for (const auto& target : targets) {
      if (target.may_be_cleared() && !offer.tensors.contains(target.key()) &&
          std::ranges::find(missing, target.key().text()) == missing.end()) {
        target.clear();
      }
    }
  }

  void send(const at::Tensor& tensor, const std::vector<PieceSource>& to) {
    const auto whole =
        tensor.cpu().resolve_conj().resolve_neg().contiguous().view({-1});
    world::Transfers transfers;
    for (const auto& source : to) {
      const auto part =
          whole.narrow(0, source.range.begin, source.range.numel());
      if (source.rank == 0) {
        take(source, part);
      } else {
        transfers.push_back(via->send(part, source.rank, kTag));
      }
    }
    wait_all(transfers, kScattering).throw_if_failed();
  }

  void receive(const std::vector<PieceSource>& to) {
    for (const auto& source : to) {
      if (source.rank != rank) {
        continue;
      }
      const auto& elements = targets[source.piece].shard.elements;
      const auto into = is_plain(elements)
          ? elements
          : at::empty(elements.sizes(), elements.scalar_type());
      via->receive(into, 0, kTag)->wait(kScattering).throw_if_failed();
      take(source, into);
    }
  }

  // Never returns early: if this rank stopped receiving, rank 0 would wait until the deadline.
  void take(const PieceSource& source, const at::Tensor& part) {
    auto& target = targets[source.piece];
    const auto status = status_of(
        [&] { write(target, part); }, ErrorCode::kFailedPrecondition,
        str("[ckpt] ", target.key().text(), ": "));
    if (taken.ok()) {
      taken = status;
    }
  }

  void write(LoadTarget& target, const at::Tensor& part) {
    auto& elements = target.shard.elements;
    if (part.const_data_ptr() != elements.const_data_ptr()) {
      elements.copy_(part.view(elements.sizes()));
    }
    bytes += static_cast<std::int64_t>(part.nbytes());
    if (target.loaded) {
      target.loaded(elements);
    }
  }

  const int rank;
  std::vector<LoadTarget>& targets;
  const std::vector<LoadTarget>& full;  // Those of the offer, on rank 0 only.
  const Sources& wanted;
  const std::shared_ptr<world::Transport> via;
  std::int64_t bytes = 0;  // Those that this rank got.
  Status taken = {};       // The first failure.
};

}  // namespace

void gather_full_state(
    const World& world,
    const CheckpointState& state,
    const FullTensorVisitor& visit) {
  const auto ranks = ckpt::ranks_of(world);
  std::vector<TensorPiece> pieces;
  on_all_or_none(ranks, kGathering, [&] {
    pieces = CheckpointAccess::pieces(state, world.rank(), world.size());
  });
  const auto sources = all_gather_sources(ranks, pieces, kGathering);
  check(sources);
  const auto via = connect(world);
  on_all_or_none(ranks, kGathering, [&] {
    gather(via.get(), world.rank(), pieces, sources, visit).throw_if_failed();
  });
}

FullState gather_full_state(const World& world, const CheckpointState& state) {
  FullState full;
  if (world.rank() == 0) {
    for (const auto& section : CheckpointAccess::sections(state)) {
      full[section];
    }
  }
  gather_full_state(
      world, state,
      [&](const std::string& section, const std::string& name,
          const at::Tensor& tensor) { full[section][name] = tensor; });
  return full;
}

LoadReport scatter_full_state(
    const World& world,
    const FullState& full,
    CheckpointState& state,
    const LoadOptions& options) {
  const auto ranks = ckpt::ranks_of(world);
  std::vector<LoadTarget> tensors;
  std::string text;
  on_all_or_none(ranks, kScattering, [&] {
    if (world.rank() == 0) {
      tensors = CheckpointAccess::targets(state_of(full), 0, {});
      if (options.strict) {
        compare_tied(tensors, state);
      }
      text = text_of(full, tensors);
    }
  });
  const auto offer = offer_of(ranks.gather(text, kScattering).value().front());
  std::vector<LoadTarget> targets;
  on_all_or_none(ranks, kScattering, [&] {
    targets = CheckpointAccess::targets(
        state, world.rank(), {.updated = [&](const TensorKey& key) {
          return offer.needs_state_of(key);
        }});
  });
  const auto wanted =
      all_gather_sources(ranks, pieces_of(targets), kScattering);
  auto report = compare_names(wanted, offer, state, options.strict);
  SHERD_CHECK(
      !options.strict || report.missing.empty(),
      "[ckpt] expected all that the job has in the full state, found no ",
      ckpt::list_of(report.missing));
  SHERD_CHECK(
      !options.strict || report.unexpected.empty(),
      "[ckpt] expected nothing that the job lacks in the full state, found ",
      ckpt::list_of(report.unexpected));
  check(wanted, offer);
  FullStateScatter scatter{
      .rank = world.rank(),
      .targets = targets,
      .full = tensors,
      .wanted = wanted,
      .via = connect(world)};
  CheckpointAccess::before_load(state);
  on_all_or_none(ranks, kScattering, [&] {
    scatter.run(offer).throw_if_failed();
    report.bytes_read = scatter.bytes;
    scatter.clear_rest(offer, report.missing);
  });
  CheckpointAccess::publish(state);
  return report;
}

}  // namespace sherd
