// SPDX-License-Identifier: Apache-2.0
#include "ckpt/save_protocol.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/log.h"
#include "world/collectives.h"
#include "world/transport.h"

namespace sherd::ckpt {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kSaving = ".saving-";  // Not complete yet.
constexpr const char* kOld = ".old-";        // About to be replaced.
constexpr const char* kRemoving = ".removing-";
// Reserved for headers and JSON, besides the tensors.
constexpr std::int64_t kSpareBytes = std::int64_t{1} << 20;

// What a rank tells the others at the end of a stage.
struct RankOutcome {
  Status status;
  std::int64_t number = 0;
  Manifest::Part part = {};

  std::string text() const {
    Json json = {
        {"number", number},
        {"name", part.name},
        {"bytes", part.bytes},
        {"checksum", part.checksum}};
    if (!status.ok()) {
      json["error"] = status.message();
      json["code"] = static_cast<int>(status.code());
    }
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }
};

RankOutcome outcome_of(const std::string& text) {
  const auto json = Json::parse(text);
  RankOutcome outcome;
  outcome.number = json.at("number").get<std::int64_t>();
  outcome.part = {
      .name = json.at("name").get<std::string>(),
      .bytes = json.at("bytes").get<std::int64_t>(),
      .checksum = json.at("checksum").get<std::uint64_t>()};
  if (json.contains("error")) {
    outcome.status = {
        static_cast<ErrorCode>(json.at("code").get<int>()),
        json.at("error").get<std::string>()};
  }
  return outcome;
}

void warn_if_failed(const Status& status) {
  if (!status.ok()) {
    log_warning(status.message());
  }
}

// Turns an exception, for instance because a name is not UTF-8, into a status, because an exception
// would leave the other ranks waiting.
template <typename Action>
Status guarded(Action&& action) {
  return status_of(action, ErrorCode::kInvalidArgument, "[ckpt] ");
}

// The outcomes of all ranks if none has failed, otherwise the first failure.
Result<std::vector<RankOutcome>> all_gather_outcomes(
    const CheckpointRanks& ranks,
    const RankOutcome& mine,
    const std::string& what) {
  SHERD_ASSIGN_OR_RETURN(const auto texts, ranks.gather(mine.text(), what));
  std::vector<RankOutcome> outcomes;
  for (const auto& text : texts) {
    outcomes.push_back(outcome_of(text));
    const auto& status = outcomes.back().status;
    if (!status.ok()) {
      const bool alone = ranks.size == 1;
      return Status(
          status.code(),
          alone ? status.message()
                : str("[ckpt] ", what, ": rank ", outcomes.size() - 1,
                      " failed: ", status.message()));
    }
  }
  return outcomes;
}

class SaveProtocol {
 public:
  SaveProtocol(const SaveContext& context, std::int64_t step)
      : context_(context),
        ranks_(context.ranks),
        files_(context.files),
        step_(step),
        name_(folder_name(step)),
        temporary_(context.folder + "/" + kSaving + name_),
        what_(str("saving step ", step)) {}

  Status run(
      const PiecesOrFailure& pieces, const CheckpointMetadata& metadata) {
    auto status = begin(pieces);
    std::vector<RankOutcome> parts;
    if (status.ok()) {
      status = write(pieces.value(), metadata, parts);
    }
    if (status.ok()) {
      status = complete(parts, metadata.values);
    }
    if (!status.ok() && is_rank_zero() && !has_replaced_one_) {
      // A failure here adds nothing to the first one; the next start tries again.
      (void)files_.remove(temporary_);
    }
    return status;
  }

 private:
  bool is_rank_zero() const { return ranks_.rank == 0; }

  Status compare_steps() {
    RankOutcome mine;
    mine.number = step_;
    SHERD_ASSIGN_OR_RETURN(
        const auto outcomes,
        all_gather_outcomes(ranks_, mine, "saving a checkpoint"));
    for (std::size_t rank = 1; rank < outcomes.size(); ++rank) {
      if (outcomes[rank].number != outcomes[0].number) {
        return {
            ErrorCode::kInvalidArgument,
            str("[ckpt] expected the same step on all ranks, found step ",
                outcomes[0].number, " on rank 0 and step ",
                outcomes[rank].number, " on rank ", rank)};
      }
    }
    return {};
  }

  // Makes an empty folder, and checks that the disk has room for all ranks.
  Status begin(const PiecesOrFailure& pieces) {
    SHERD_RETURN_IF_FAILED(compare_steps());
    RankOutcome mine;
    mine.status = pieces.status();
    if (pieces.ok()) {
      mine.number = bytes_of(pieces.value());
    }
    if (mine.status.ok() && is_rank_zero()) {
      mine.status = files_.remove(temporary_);
      mine.status =
          mine.status.ok() ? files_.make_folder(temporary_) : mine.status;
    }
    const auto outcomes = all_gather_outcomes(ranks_, mine, what_);
    return outcomes.ok() ? check_room(outcomes.value()) : outcomes.status();
  }

  Status check_room(const std::vector<RankOutcome>& outcomes) {
    std::int64_t needed = kSpareBytes;
    for (const auto& outcome : outcomes) {
      needed += outcome.number;
    }
    Status status;
    if (is_rank_zero()) {
      const auto free = files_.free_bytes(context_.folder);
      status = free.status();
      if (free.ok() && free.value() < needed) {
        status = {
            ErrorCode::kUnavailable,
            str("[ckpt] ", context_.folder, ": expected room for ", needed,
                " bytes, found ", free.value())};
      }
    }
    return agree(ranks_, status, what_);
  }

  Status write(
      const std::vector<TensorPiece>& pieces,
      const CheckpointMetadata& metadata,
      std::vector<RankOutcome>& parts) {
    RankOutcome mine;
    mine.status = guarded([&] {
      const auto part = write_part(
          files_, temporary_, ranks_.rank, pieces,
          is_rank_zero() ? metadata.part_of_rank_zero : PartManifest(),
          context_.options);
      mine.part = part.ok() ? part.value() : Manifest::Part();
      return part.status();
    });
    SHERD_ASSIGN_OR_RETURN(parts, all_gather_outcomes(ranks_, mine, what_));
    return {};
  }

  Status complete(
      const std::vector<RankOutcome>& parts,
      const std::map<std::string, std::string>& values) {
    Status status;
    if (is_rank_zero()) {
      Manifest manifest{
          .step = step_,
          .world_size = ranks_.size,
          .values = values,
          .parts = {}};
      for (const auto& outcome : parts) {
        manifest.parts.push_back(outcome.part);
      }
      status = guarded([&] { return move_into_place(to_json(manifest)); });
    }
    status = agree(ranks_, status, what_);
    if (status.ok() && is_rank_zero()) {
      // If a checkpoint cannot be removed, that is not a failure.
      warn_if_failed(remove_old_ones());
    }
    return status;
  }

  Status move_into_place(const std::string& manifest) {
    const auto place = context_.folder + "/" + name_;
    const auto old = context_.folder + "/" + kOld + name_;
    SHERD_RETURN_IF_FAILED(
        write_file(files_, temporary_ + "/" + kManifestName, manifest));
    SHERD_RETURN_IF_FAILED(files_.sync_folder(temporary_));
    SHERD_ASSIGN_OR_RETURN(const bool replaces, files_.exists(place));
    if (replaces) {
      SHERD_ASSIGN_OR_RETURN(
          has_replaced_one_, files_.exchange(temporary_, place));
      if (has_replaced_one_) {
        return end_exchange(place);
      }
      // Programs that load in between find none of this step. A former one that could not be removed.
      SHERD_RETURN_IF_FAILED(files_.remove(old));
      SHERD_RETURN_IF_FAILED(files_.rename(place, old));
    }
    auto status = files_.rename(temporary_, place);
    if (status.ok()) {
      status = files_.sync_folder(context_.folder);
      if (!status.ok()) {
        (void)files_.rename(place, temporary_);
      }
    }
    if (replaces) {
      warn_if_failed(
          status.ok() ? files_.remove(old) : files_.rename(old, place));
    }
    if (!status.ok()) {  // Before the replaced files are removed.
      warn_if_failed(files_.sync_folder(context_.folder));
    }
    return status;
  }

  // The new checkpoint has its place, and `temporary_` is the replaced one.
  Status end_exchange(const std::string& place) {
    auto status = files_.sync_folder(context_.folder);
    if (!status.ok()) {
      const auto undone = files_.exchange(temporary_, place);
      has_replaced_one_ = !undone.ok();
      warn_if_failed(files_.sync_folder(context_.folder));
      return status;
    }
    warn_if_failed(files_.remove(temporary_));
    return status;
  }

  // Each first loses its name, durably, so that a folder of that name is whole whenever power is
  // lost.
  Status remove_old_ones() {
    const auto& options = context_.options;
    if (options.keep_last <= 0) {
      return {};
    }
    const auto found = complete_steps(files_, context_.folder);
    auto steps = found.ok() ? found.value() : std::vector<std::int64_t>();
    std::erase_if(steps, [&](std::int64_t step) {
      const bool special =
          options.keep_every > 0 && step % options.keep_every == 0;
      return special || step > step_;  // Later steps of an earlier run.
    });
    const auto keep = static_cast<std::size_t>(options.keep_last);
    std::vector<std::string> gone;
    for (std::size_t i = 0; i + keep < steps.size(); ++i) {
      const auto name = folder_name(steps[i]);
      gone.push_back(context_.folder + "/" + kRemoving + name);
      // One not removed before.
      SHERD_RETURN_IF_FAILED(files_.remove(gone.back()));
      SHERD_RETURN_IF_FAILED(
          files_.rename(context_.folder + "/" + name, gone.back()));
    }
    if (!gone.empty()) {
      SHERD_RETURN_IF_FAILED(files_.sync_folder(context_.folder));
    }
    for (const auto& path : gone) {
      SHERD_RETURN_IF_FAILED(files_.remove(path));
    }
    return {};
  }

  const SaveContext& context_;
  const CheckpointRanks& ranks_;
  FileSystem& files_;
  const std::int64_t step_;
  const std::string name_;
  const std::string temporary_;
  const std::string what_;
  // Whether `temporary_` is the checkpoint that this one replaces, not a draft.
  bool has_replaced_one_ = false;
};

}  // namespace

CheckpointRanks ranks_of(const World& world) {
  return {
      .rank = world.rank(),
      .size = world.size(),
      .gather = [&world](const std::string& mine, const std::string&) {
        return Result(world.all_gather_texts(mine));
      }};
}

CheckpointRanks ranks_with_own_connections(const World& world) {
  if (world.size() == 1) {
    return {};
  }
  auto transport = world::make_c10d_transport(
      world, str("ckpt/", world.next_number()), Mesh(world).shard_ranks());
  return {
      .rank = world.rank(),
      .size = world.size(),
      .gather = [transport](const std::string& mine, const std::string& what) {
        return world::Collectives(*transport, what).all_gather_texts(mine);
      }};
}

Status agree(
    const CheckpointRanks& ranks, const Status& mine, const std::string& what) {
  return all_gather_outcomes(ranks, {.status = mine}, what).status();
}

Result<std::string> text_of_rank_zero(
    const CheckpointRanks& ranks,
    const std::function<Result<std::string>()>& make,
    const std::string& what) {
  const auto mine = ranks.rank == 0 ? make() : std::string();
  SHERD_RETURN_IF_FAILED(agree(ranks, mine.status(), what));
  SHERD_ASSIGN_OR_RETURN(const auto all, ranks.gather(mine.value(), what));
  return all.front();
}

Result<std::vector<std::int64_t>> complete_steps(
    FileSystem& files, const std::string& folder) {
  SHERD_ASSIGN_OR_RETURN(const auto names, files.list(folder));
  std::vector<std::int64_t> steps;
  for (const auto& name : names) {
    const auto step = step_of(name);
    if (step < 0) {
      continue;
    }
    SHERD_ASSIGN_OR_RETURN(
        const bool complete,
        files.exists(folder + "/" + name + "/" + kManifestName));
    if (complete) {
      steps.push_back(step);
    }
  }
  std::ranges::sort(steps);
  return steps;
}

Result<std::vector<std::int64_t>> complete_steps(
    const CheckpointRanks& ranks, const std::string& folder) {
  const auto text = text_of_rank_zero(
      ranks,
      [&]() -> Result<std::string> {
        const auto files = make_posix_file_system();
        SHERD_ASSIGN_OR_RETURN(
            const auto steps, complete_steps(*files, folder));
        return Json(steps).dump();
      },
      "listing the checkpoints in " + folder);
  SHERD_RETURN_IF_FAILED(text.status());
  return Json::parse(text.value()).get<std::vector<std::int64_t>>();
}

Status make_durable_folder(FileSystem& files, const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<std::string> above;  // The parents of folders to be made.
  for (fs::path missing(path); missing.has_relative_path();
       missing = missing.parent_path()) {
    const auto found = files.exists(missing.string());
    if (!found.ok() || found.value()) {
      break;  // make_folder() will fail below if it cannot be accessed.
    }
    const auto parent = missing.parent_path().string();
    above.push_back(parent.empty() ? "." : parent);
  }
  auto status = files.make_folder(path);
  for (std::size_t i = 0; i < above.size() && status.ok(); ++i) {
    status = files.sync_folder(above[i]);
  }
  return status;
}

Status clean_up(FileSystem& files, const std::string& folder) {
  SHERD_ASSIGN_OR_RETURN(const auto names, files.list(folder));
  if (names.empty()) {
    return {};
  }
  // Otherwise a power loss could restore a name whose files are removed below.
  SHERD_RETURN_IF_FAILED(files.sync_folder(folder));
  for (const auto& name : names) {
    const auto path = folder + "/" + name;
    if (name.starts_with(kSaving) || name.starts_with(kRemoving)) {
      SHERD_RETURN_IF_FAILED(files.remove(path));
    } else if (name.starts_with(kOld)) {
      const auto place = folder + "/" + name.substr(std::string(kOld).size());
      SHERD_ASSIGN_OR_RETURN(const bool replaced, files.exists(place));
      SHERD_RETURN_IF_FAILED(
          replaced ? files.remove(path) : files.rename(path, place));
    }
  }
  return {};
}

Status save_pieces(
    const SaveContext& context,
    std::int64_t step,
    const PiecesOrFailure& pieces,
    const CheckpointMetadata& metadata) {
  return SaveProtocol(context, step).run(pieces, metadata);
}

}  // namespace sherd::ckpt
