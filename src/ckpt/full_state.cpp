// SPDX-License-Identifier: Apache-2.0
// Gathers a state's tensors, whole, on rank 0.
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <sherd/ckpt/checkpoint.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/status_from_exception.h"
#include "ckpt/dtypes.h"
#include "ckpt/save_protocol.h"
#include "ckpt/state_access.h"
#include "world/transport.h"

namespace sherd {
namespace {

using ckpt::TensorPiece;

constexpr const char* kWhat = "gathering a full state";
constexpr int kTag = 0;  // Messages between two ranks keep their order.

// A piece and the rank that has it.
struct PieceSource {
  int rank = 0;
  std::size_t piece = 0;  // Index in the rank's pieces.
  std::string dtype;
  std::vector<std::int64_t> shape;  // The whole tensor's.
  plan::ElementRange range;
};
using Sources = std::map<ckpt::TensorKey, std::vector<PieceSource>>;

std::string text_of(const std::vector<TensorPiece>& pieces) {
  auto json = nlohmann::json::array();
  for (const auto& piece : pieces) {
    json.push_back(
        {piece.section, piece.name, ckpt::name_of(piece.elements.scalar_type()),
         piece.shape, piece.range.begin, piece.range.end});
  }
  return json.dump();
}

// Reads the texts of text_of(), given by rank.
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

// Every rank comes to the same result.
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

class FullStateGather {
 public:
  FullStateGather(
      const World& world, std::vector<TensorPiece> pieces, Sources sources)
      : rank_(world.rank()),
        pieces_(std::move(pieces)),
        sources_(std::move(sources)) {
    if (world.size() > 1) {
      via_ = world::make_c10d_transport(
          world, str("ckpt/full/", world.next_number()),
          Mesh(world).shard_ranks());
    }
  }

  // When a visit throws, all other messages are received nevertheless.
  Status run(const FullTensorVisitor& visit) {
    Status visited;
    for (const auto& [key, sources] : sources_) {
      if (rank_ != 0) {
        send(sources);
        continue;
      }
      const auto whole = receive(sources);
      if (visited.ok()) {
        visited = status_of(
            [&, &key = key] {
              visit(key.section, key.name, whole);
              return Status();
            },
            ErrorCode::kFailedPrecondition);
      }
    }
    return visited;
  }

 private:
  void send(const std::vector<PieceSource>& sources) {
    for (const auto& source : sources) {
      if (source.rank == rank_) {
        via_->send(pieces_[source.piece].elements, 0, kTag)
            ->wait(kWhat)
            .throw_if_failed();
      }
    }
  }

  at::Tensor receive(const std::vector<PieceSource>& sources) {
    const at::NoGradGuard no_grad;  // Reading is no forward.
    const auto& first = sources.front();
    auto whole = at::empty(
        first.shape,
        at::TensorOptions().dtype(*ckpt::dtype_named(first.dtype)));
    for (const auto& source : sources) {
      const auto part =
          whole.view({-1}).narrow(0, source.range.begin, source.range.numel());
      if (source.rank == rank_) {
        part.copy_(pieces_[source.piece].elements);
      } else {
        via_->receive(part, source.rank, kTag)->wait(kWhat).throw_if_failed();
      }
    }
    return whole;
  }

  const int rank_;
  const std::vector<TensorPiece> pieces_;
  const Sources sources_;
  std::shared_ptr<world::Transport> via_;
};

}  // namespace

void gather_full_state(
    const World& world,
    const CheckpointState& state,
    const FullTensorVisitor& visit) {
  const auto ranks = ckpt::ranks_of(world);
  auto pieces = CheckpointAccess::pieces(state, world.rank(), world.size());
  const auto texts = ranks.gather(text_of(pieces), kWhat);
  texts.status().throw_if_failed();
  auto sources = sources_of(texts.value());
  check(sources);
  FullStateGather full(world, std::move(pieces), std::move(sources));
  const auto mine = status_of(
      [&] { return full.run(visit); }, ErrorCode::kFailedPrecondition);
  agree(ranks, mine, kWhat).throw_if_failed();
}

}  // namespace sherd
