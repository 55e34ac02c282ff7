// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/host.h"
#include "base/log.h"
#include "base/status.h"
#include "ckpt/manifest.h"
#include "ckpt/reader.h"
#include "ckpt/save_protocol.h"
#include "ckpt/state_access.h"
#include "device/host_memory.h"

namespace sherd {

using ckpt::PiecesOrFailure;
using ckpt::TensorPiece;

namespace {

// How long to wait for another job's save into a shared folder, but only for half of the world's
// deadline, since the other ranks wait for rank 0.
constexpr Duration kLockTimeout = std::chrono::minutes(1);
// How long hosts may take to see a new file of a network file system.
constexpr Duration kSightTimeout = std::chrono::seconds(30);
// The program may change its working directory.
std::string from_here(const std::string& folder) {
  std::error_code error;
  const auto whole = std::filesystem::absolute(folder, error);
  return error ? folder : whole.string();
}

// Rank 0's text if the checkpoint already exists.
constexpr const char* kAlreadySaved = "there";

}  // namespace

struct CheckpointSaver::Impl {
  Impl(const World& world, const std::string& folder, SaveOptions options)
      : files(ckpt::make_posix_file_system()),
        context{
            .files = *files,
            .folder = from_here(folder),
            .ranks = ckpt::ranks_with_own_connections(world),
            .options = std::move(options)},
        lock_timeout(
            std::min<Duration>(kLockTimeout, world.options().deadline / 2)) {
    const std::string what = "opening a folder for checkpoints";
    agree(context.ranks, check(), what).throw_if_failed();
    const auto mark = text_of_rank_zero(
                          context.ranks, [&] { return prepare(); }, what)
                          .value();
    const auto status = agree(context.ranks, see(mark), what);
    if (world.rank() == 0 && !mark.empty()) {
      (void)files->remove(path_of(mark));
    }
    status.throw_if_failed();
  }

  ~Impl() {
    const auto status = join();
    if (!status.ok()) {
      log_warning(
          str("a checkpoint was not saved, and nobody waited for it: ",
              status.message()));
    }
  }

  std::string path_of(const std::string& name) const {
    return context.folder + "/" + name;
  }

  Status check() const {
    const auto& options = context.options;
    const bool fine = options.keep_last >= 0 && options.keep_every >= 0 &&
        options.file_bytes_max >= 1;
    return fine ? Status()
                : Status(
                      ErrorCode::kInvalidArgument,
                      str("[ckpt] expected keep_last and keep_every of at "
                          "least 0 and file_bytes_max of at least 1, found ",
                          options.keep_last, ", ", options.keep_every, " and ",
                          options.file_bytes_max));
  }

  // Returns the name of a new file, by which the other ranks see that their folder is the same one.
  // Empty if there are no others, or no room for it; a full disk is reported by saves.
  Result<std::string> prepare() {
    SHERD_RETURN_IF_FAILED(
        context.options.shared ? make_durable_folder(*files, context.folder)
                               : take_folder(SteadyClock().now()));
    std::random_device random;
    const auto mark = str(".seen-", random(), "-", random());
    return context.ranks.size > 1 && files->create(path_of(mark)).ok()
        ? mark
        : std::string();
  }

  // kInvalidArgument if this host does not see what rank 0 has made.
  Status see(const std::string& mark) const {
    if (mark.empty()) {
      return {};
    }
    const auto deadline =
        SteadyClock().now() + std::min<Duration>(kSightTimeout, lock_timeout);
    auto seen = files->exists(path_of(mark));
    while (seen.ok() && !seen.value() && SteadyClock().now() < deadline) {
      std::this_thread::sleep_for(ckpt::kLockPollInterval);
      // To open a folder makes NFS ask its server again what is there.
      for (std::filesystem::path above(context.folder);
           above.has_relative_path(); above = above.parent_path()) {
        (void)files->list(above.string());
      }
      seen = files->exists(path_of(mark));
    }
    SHERD_RETURN_IF_FAILED(seen.status());
    return seen.value()
        ? Status()
        : Status(
              ErrorCode::kInvalidArgument,
              str("[ckpt] ", context.folder,
                  ": expected the folder that rank 0 saves into, found that "
                  "host ",
                  host_name(),
                  " does not see its files; all ranks save into one folder, "
                  "which every host must see"));
  }

  // Locks the folder once others have unlocked it, and cleans it up. Makes it again if it is gone.
  // kDeadlineExceeded if another job is still saving into a shared one then.
  Status take_folder(Instant deadline) {
    SHERD_RETURN_IF_FAILED(make_durable_folder(*files, context.folder));
    const auto is_taken = [](const Status& status) {
      return !status.ok() && status.code() == ErrorCode::kFailedPrecondition;
    };
    auto locked = ckpt::lock_folder(context.folder);
    while (is_taken(locked.status()) && SteadyClock().now() < deadline) {
      std::this_thread::sleep_for(ckpt::kLockPollInterval);
      locked = ckpt::lock_folder(context.folder);
    }
    if (context.options.shared && is_taken(locked.status())) {
      return {ErrorCode::kDeadlineExceeded, locked.status().message()};
    }
    SHERD_RETURN_IF_FAILED(locked.status());
    lock.emplace(std::move(locked).value());
    return clean_up(*files, context.folder);
  }

  // On rank 0, which has the lock: takes the folder again if it was moved or removed.
  Status keep_folder() {
    if (!lock || lock->in_place()) {
      return {};
    }
    log_warning(str(
        "[ckpt] ", context.folder, " was moved or removed; it is made again"));
    return take_folder(SteadyClock().now());
  }

  // What this rank saves, as copies where training may change it meanwhile. A failure is for
  // write(), where the other ranks wait for this one.
  PiecesOrFailure take(const CheckpointState& state) {
    std::vector<TensorPiece> pieces;
    const auto status = status_of(
        [&] {
          pieces = CheckpointAccess::pieces(
              state, context.ranks.rank, context.ranks.size);
          if (context.options.asynchronous) {
            copy(pieces);
          }
        },
        ErrorCode::kFailedPrecondition, "[ckpt] ");
    SHERD_RETURN_IF_FAILED(status);
    return pieces;
  }

  // Collective. All of a save but copying the tensors.
  Status write(
      std::int64_t step,
      const PiecesOrFailure& pieces,
      const ckpt::CheckpointMetadata& metadata) {
    if (!context.options.shared) {
      const auto status = keep_folder();
      return save_pieces(
          context, step, status.ok() ? pieces : PiecesOrFailure(status),
          metadata);
    }
    const auto status = write_shared(step, pieces, metadata);
    lock.reset();
    return status;
  }

  Status write_shared(
      std::int64_t step,
      const PiecesOrFailure& pieces,
      const ckpt::CheckpointMetadata& metadata) {
    const auto what = str("saving step ", step);
    SHERD_RETURN_IF_FAILED(agree(context.ranks, pieces.status(), what));
    const auto first = text_of_rank_zero(
        context.ranks,
        [&]() -> Result<std::string> {
          SHERD_RETURN_IF_FAILED(
              take_folder(SteadyClock().now() + lock_timeout));
          return std::string(
              is_already_saved(step, metadata.values) ? kAlreadySaved : "");
        },
        what);
    if (!first.ok() || first.value() == kAlreadySaved) {
      return first.status();
    }
    return save_pieces(context, step, pieces, metadata);
  }

  // Whether another job has saved the checkpoint; one that cannot be read does not count.
  bool is_already_saved(
      std::int64_t step,
      const std::map<std::string, std::string>& values) const {
    bool there = false;
    const auto place = path_of(ckpt::folder_name(step));
    const auto read = status_of(
        [&] {
          there = ckpt::CheckpointReader(place).manifest().values == values;
        },
        ErrorCode::kUnavailable);
    return read.ok() && there;
  }

  // The memory of the copies is kept for the next save, and is fast to write from a device.
  void copy(std::vector<TensorPiece>& pieces) {
    const at::NoGradGuard no_grad;
    copies.resize(pieces.size());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      auto& elements = pieces[i].elements;
      if (!copies[i].defined() || copies[i].sizes() != elements.sizes() ||
          copies[i].scalar_type() != elements.scalar_type()) {
        copies[i] = device::empty_on_host(
            elements.sizes(), elements.scalar_type(), elements.device());
      }
      copies[i].copy_(elements);
      elements = copies[i];
    }
  }

  void end_writer() {
    if (writer.joinable()) {
      writer.join();
    }
    writes.store(false, std::memory_order_relaxed);
  }

  Status join() {
    end_writer();
    return std::exchange(outcome, {});
  }

  const std::unique_ptr<ckpt::FileSystem> files;
  const ckpt::SaveContext context;
  const Duration lock_timeout;
  // On rank 0: held for life or, for a shared folder, while it saves.
  std::optional<ckpt::FolderLock> lock;
  std::vector<at::Tensor> copies;
  Status outcome;  // Set by the writer when it ends.
  // Only a hint: `outcome` is read only after join(), which orders memory.
  std::atomic<bool> writes{false};
  std::thread writer;
};

CheckpointSaver::CheckpointSaver(
    const World& world, const std::string& folder, const SaveOptions& options) {
  impl_ = std::make_unique<Impl>(world, folder, options);
}

CheckpointSaver::~CheckpointSaver() = default;
CheckpointSaver::CheckpointSaver(CheckpointSaver&&) noexcept = default;

void CheckpointSaver::save(std::int64_t step, const CheckpointState& state) {
  wait();
  SHERD_CHECK(step >= 0, "[ckpt] expected a step of at least 0, found ", step);
  auto& impl = *impl_;
  auto pieces = impl.take(state);
  auto metadata = CheckpointAccess::metadata(state);
  if (!impl.context.options.asynchronous) {
    impl.write(step, pieces, metadata).throw_if_failed();
    return;
  }
  impl.writes.store(true, std::memory_order_relaxed);
  impl.writer = std::thread([&impl, step, pieces = std::move(pieces),
                             metadata = std::move(metadata)] {
    impl.outcome = impl.write(step, pieces, metadata);
    impl.writes.store(false, std::memory_order_relaxed);
  });
  ::pthread_setname_np(impl.writer.native_handle(), "sherd-save");
}

void CheckpointSaver::wait() { impl_->join().throw_if_failed(); }

bool CheckpointSaver::saving() const {
  return impl_->writes.load(std::memory_order_relaxed);
}

std::optional<std::string> CheckpointSaver::newest() const {
  impl_->end_writer();  // It uses the same connections.
  const auto& context = impl_->context;
  const auto steps =
      ckpt::complete_steps(context.ranks, context.folder).value();
  return steps.empty()
      ? std::nullopt
      : std::optional(impl_->path_of(ckpt::folder_name(steps.back())));
}

}  // namespace sherd
