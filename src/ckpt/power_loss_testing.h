// SPDX-License-Identifier: Apache-2.0
//
// PowerLossFileSystem is a file system in memory that can lose power. A file's content and the
// names in a folder each have two versions: what the kernel shows, and what is on the disk, which
// only sync() and sync_folder() update. The root, at which all paths begin, always exists. Thread
// rule: any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>
#include "ckpt/file_system.h"

namespace sherd::ckpt {

struct PowerLossOptions {
  // Operations change or sync something; removing a folder is one operation for each thing in it.
  // -1: none.
  std::int64_t lost_at = -1;     // This one and all later ones fail.
  std::int64_t failing_at = -1;  // Only this one fails.
  // Creating a file with this in its name fails. Empty: no file.
  std::string refused = {};
  bool can_exchange = true;
  std::int64_t free_bytes = std::int64_t{1} << 40;
  // Decides how much of a failed write is in the file; see also kSome.
  std::uint64_t seed = 1;
};

// How much of what was not synced is on the disk after a power loss.
enum class Unsynced {
  kNothing,
  // A random number of the first changes in each folder, and of the first bytes of each file: POSIX
  // promises no more.
  kSome,
  kAll,  // The power stayed; only the process was killed.
};

class PowerLossFileSystem final : public FileSystem {
 public:
  explicit PowerLossFileSystem(const PowerLossOptions& options = {});
  ~PowerLossFileSystem() override;
  PowerLossFileSystem(const PowerLossFileSystem&) = delete;
  PowerLossFileSystem& operator=(const PowerLossFileSystem&) = delete;

  // Begins the next process on the same kernel: counts from 0 again.
  void go_on(const PowerLossOptions& options);
  // The number of operations, including failed ones.
  std::int64_t operations() const;

  // Writes what is left into a real folder. Does not change this file system.
  void materialise(const std::string& folder, Unsynced unsynced);
  void materialise(const std::string& folder, bool everything) {
    materialise(folder, everything ? Unsynced::kAll : Unsynced::kNothing);
  }

  Status make_folder(const std::string& path) override;
  Result<std::unique_ptr<OutputFile>> create(const std::string& path) override;
  Status sync_folder(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Result<bool> exchange(const std::string& a, const std::string& b) override;
  Status remove(const std::string& path) override;
  Result<bool> exists(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Result<std::int64_t> free_bytes(const std::string& path) override;

 private:
  struct Node;
  class Output;
  struct PathEntry;
  using Handle = std::shared_ptr<Node>;

  // Call these while holding mutex_.
  Status count(const std::string& action, const std::string& path);
  bool lost() const;
  Handle find(const std::string& path) const;
  PathEntry place_of(const std::string& path) const;
  Status remove_tree(const PathEntry& place, const std::string& path);
  void write_node(const Node& node, const std::string& path, Unsynced unsynced);
  std::uint64_t chance(std::uint64_t limit);

  mutable std::mutex mutex_;
  PowerLossOptions options_;
  std::int64_t operations_ = 0;
  std::mt19937_64 random_;
  const Handle root_;
};

}  // namespace sherd::ckpt
