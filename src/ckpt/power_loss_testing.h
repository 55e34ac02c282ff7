// SPDX-License-Identifier: Apache-2.0
//
// PowerLossFileSystem is a file system in memory that loses power. A file's content
// and the names in a folder each have two versions: what the kernel shows, and
// what is on the disk, which only sync() and sync_folder() bring up to date. The
// root, which all paths begin at, is always there. Thread rule: any thread.
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
  // Operations are what changes or syncs something; removing a folder is one for
  // each thing in it. -1: none is.
  std::int64_t lost_at = -1;     // It and all later ones fail.
  std::int64_t failing_at = -1;  // It alone fails.
  // Creating a file with this in its name fails. Empty: no file.
  std::string refused = {};
  std::int64_t free_bytes = std::int64_t{1} << 40;
  // How much of a write that failed is in the file; see also kSome.
  std::uint64_t seed = 1;
};

// Of what nobody has synced: what is on the disk after a loss of power.
enum class Unsynced {
  kNothing,
  // The first few of the changes in each folder, and of the bytes of each file,
  // as chance will have it: POSIX promises no more.
  kSome,
  kAll,  // The power stayed; the process was killed.
};

class PowerLossFileSystem final : public FileSystem {
 public:
  explicit PowerLossFileSystem(const PowerLossOptions& options = {});
  ~PowerLossFileSystem() override;
  PowerLossFileSystem(const PowerLossFileSystem&) = delete;
  PowerLossFileSystem& operator=(const PowerLossFileSystem&) = delete;

  // The next process, on the same kernel: counts from 0 again.
  void go_on(const PowerLossOptions& options);
  // How many there were, failed ones included.
  std::int64_t operations() const;

  // Writes what is left into a real folder. Does not touch what is here.
  void materialise(const std::string& folder, Unsynced unsynced);
  void materialise(const std::string& folder, bool everything) {
    materialise(folder, everything ? Unsynced::kAll : Unsynced::kNothing);
  }

  Status make_folder(const std::string& path) override;
  Result<std::unique_ptr<OutputFile>> create(const std::string& path) override;
  Status sync_folder(const std::string& path) override;
  Status rename(const std::string& from, const std::string& to) override;
  Status remove(const std::string& path) override;
  Result<bool> exists(const std::string& path) override;
  Result<std::vector<std::string>> list(const std::string& path) override;
  Result<std::int64_t> free_bytes(const std::string& path) override;

 private:
  struct Node;
  class Output;
  struct PathEntry;
  using Handle = std::shared_ptr<Node>;

  // All of them under mutex_.
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
