// SPDX-License-Identifier: Apache-2.0
#include "ckpt/power_loss_testing.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "base/check.h"

namespace sherd::ckpt {
namespace {

namespace fs = std::filesystem;

Status power_loss_failed(
    const std::string& action, const std::string& path, const char* why) {
  return {
      ErrorCode::kUnavailable,
      str("[ckpt] cannot ", action, " ", path, ": ", why)};
}

// The components of the path, without those that change nothing.
std::vector<std::string> power_loss_names(const std::string& path) {
  std::vector<std::string> names;
  for (const auto& part : fs::path(path).relative_path()) {
    if (!part.empty() && part != ".") {
      names.push_back(part.string());
    }
  }
  return names;
}

}  // namespace

// A file or a folder. After a rename it is the same node.
struct PowerLossFileSystem::Node {
  using Names = std::map<std::string, Handle>;

  bool folder = false;
  // If it is a file.
  std::string content;
  std::string content_on_disk;
  // If it is a folder: the names as shown, on the disk, and after each change since.
  Names names;
  Names names_on_disk;
  std::vector<Names> changes;

  void changed() { changes.push_back(names); }
};

struct PowerLossFileSystem::PathEntry {
  Handle parent;  // Null: there is no such folder.
  std::string name;
  Handle node;  // Null: there is nothing of that name.
};

class PowerLossFileSystem::Output final : public OutputFile {
 public:
  Output(PowerLossFileSystem& files, Handle node, std::string path)
      : files_(files), node_(std::move(node)), path_(std::move(path)) {}

  Status write(const void* bytes, std::size_t count) override {
    const std::lock_guard lock(files_.mutex_);
    const bool was_lost = files_.lost();
    const auto status = files_.count("write", path_);
    auto done = count;
    if (!status.ok()) {
      done = was_lost ? 0 : files_.chance(count + 1);
    }
    node_->content.append(static_cast<const char*>(bytes), done);
    return status;
  }

  Status sync() override {
    const std::lock_guard lock(files_.mutex_);
    auto status = files_.count("sync", path_);
    if (status.ok()) {
      node_->content_on_disk = node_->content;
    }
    return status;
  }

 private:
  PowerLossFileSystem& files_;
  const Handle node_;
  const std::string path_;
};

PowerLossFileSystem::PowerLossFileSystem(const PowerLossOptions& options)
    : options_(options),
      random_(options.seed),
      root_(std::make_shared<Node>()) {
  root_->folder = true;
}

PowerLossFileSystem::~PowerLossFileSystem() = default;

void PowerLossFileSystem::go_on(const PowerLossOptions& options) {
  const std::lock_guard lock(mutex_);
  options_ = options;
  operations_ = 0;
  random_.seed(options.seed);
}

std::int64_t PowerLossFileSystem::operations() const {
  const std::lock_guard lock(mutex_);
  return operations_;
}

bool PowerLossFileSystem::lost() const {
  return options_.lost_at >= 0 && operations_ > options_.lost_at;
}

std::uint64_t PowerLossFileSystem::chance(std::uint64_t limit) {
  return random_() % limit;
}

Status PowerLossFileSystem::count(
    const std::string& action, const std::string& path) {
  const auto now = operations_++;
  if (lost()) {
    return power_loss_failed(action, path, "the power is lost");
  }
  return now == options_.failing_at
      ? power_loss_failed(action, path, "the disk says no")
      : Status();
}

PowerLossFileSystem::Handle PowerLossFileSystem::find(
    const std::string& path) const {
  auto node = root_;
  for (const auto& name : power_loss_names(path)) {
    const auto found = node->names.find(name);
    if (found == node->names.end()) {
      return nullptr;
    }
    node = found->second;
  }
  return node;
}

PowerLossFileSystem::PathEntry PowerLossFileSystem::place_of(
    const std::string& path) const {
  const fs::path whole(path);
  PathEntry place{
      .parent = find(whole.parent_path().string()),
      .name = whole.filename().string(),
      .node = nullptr};
  if (place.parent && place.parent->folder) {
    place.node = find(path);
  } else {
    place.parent = nullptr;
  }
  return place;
}

Status PowerLossFileSystem::make_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  auto status = count("make folder", path);
  if (!status.ok()) {
    return status;
  }
  auto node = root_;
  for (const auto& name : power_loss_names(path)) {
    auto& below = node->names[name];
    if (!below) {
      below = std::make_shared<Node>();
      below->folder = true;
      node->changed();
    }
    node = below;
    if (!node->folder) {
      return power_loss_failed("make folder", path, "it is a file");
    }
  }
  return {};
}

Result<std::unique_ptr<OutputFile>> PowerLossFileSystem::create(
    const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (auto status = count("create", path); !status.ok()) {
    return status;
  }
  const auto place = place_of(path);
  if (!place.parent || place.node) {
    return power_loss_failed(
        "create", path, place.node ? "File exists" : "No such folder");
  }
  if (!options_.refused.empty() &&
      place.name.find(options_.refused) != std::string::npos) {
    return power_loss_failed("create", path, "the disk says no");
  }
  auto node = std::make_shared<Node>();
  place.parent->names[place.name] = node;
  place.parent->changed();
  return std::unique_ptr<OutputFile>(
      std::make_unique<Output>(*this, std::move(node), path));
}

Status PowerLossFileSystem::sync_folder(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (auto status = count("sync folder", path); !status.ok()) {
    return status;
  }
  const auto node = find(path);
  if (!node || !node->folder) {
    return power_loss_failed("sync folder", path, "No such folder");
  }
  node->names_on_disk = node->names;
  node->changes.clear();
  return {};
}

Status PowerLossFileSystem::rename(
    const std::string& from, const std::string& to) {
  const std::lock_guard lock(mutex_);
  if (auto status = count("rename " + from + " to", to); !status.ok()) {
    return status;
  }
  const auto source = place_of(from);
  const auto target = place_of(to);
  if (!source.node || !target.parent || target.node) {
    return power_loss_failed(
        "rename " + from + " to", to,
        target.node ? "Directory not empty" : "No such file or directory");
  }
  source.parent->names.erase(source.name);
  target.parent->names[target.name] = source.node;
  source.parent->changed();
  if (target.parent != source.parent) {
    target.parent->changed();
  }
  return {};
}

Result<bool> PowerLossFileSystem::exchange(
    const std::string& a, const std::string& b) {
  const std::lock_guard lock(mutex_);
  if (auto status = count("exchange " + a + " and", b); !status.ok()) {
    return status;
  }
  const auto first = place_of(a);
  const auto second = place_of(b);
  SHERD_ASSERT(first.node && second.node && first.parent == second.parent);
  if (options_.can_exchange) {
    first.parent->names[first.name] = second.node;
    first.parent->names[second.name] = first.node;
    first.parent->changed();
  }
  return options_.can_exchange;
}

Status PowerLossFileSystem::remove(const std::string& path) {
  const std::lock_guard lock(mutex_);
  const auto place = place_of(path);
  return place.node ? remove_tree(place, path) : count("remove", path);
}

// Removes what is in a folder first, in any order, as systems do.
Status PowerLossFileSystem::remove_tree(
    const PathEntry& place, const std::string& path) {
  std::vector<PathEntry> below;
  for (const auto& [name, node] : place.node->names) {
    below.push_back({.parent = place.node, .name = name, .node = node});
  }
  std::shuffle(below.begin(), below.end(), random_);
  for (const auto& one : below) {
    if (auto status = remove_tree(one, path + "/" + one.name); !status.ok()) {
      return status;
    }
  }
  auto status = count("remove", path);
  if (status.ok()) {
    place.parent->names.erase(place.name);
    place.parent->changed();
  }
  return status;
}

Result<bool> PowerLossFileSystem::exists(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (lost()) {
    return power_loss_failed("look for", path, "the power is lost");
  }
  return find(path) != nullptr;
}

Result<std::vector<std::string>> PowerLossFileSystem::list(
    const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (lost()) {
    return power_loss_failed("list", path, "the power is lost");
  }
  std::vector<std::string> names;
  if (const auto node = find(path)) {
    for (const auto& [name, below] : node->names) {
      names.push_back(name);
    }
  }
  return names;
}

Result<std::int64_t> PowerLossFileSystem::free_bytes(const std::string& path) {
  const std::lock_guard lock(mutex_);
  if (lost()) {
    return power_loss_failed("ask for the free space of", path, "lost");
  }
  return options_.free_bytes;
}

void PowerLossFileSystem::materialise(
    const std::string& folder, Unsynced unsynced) {
  const std::lock_guard lock(mutex_);
  write_node(*root_, folder, unsynced);
}

void PowerLossFileSystem::write_node(
    const Node& node, const std::string& path, Unsynced unsynced) {
  if (!node.folder) {
    auto content =
        unsynced == Unsynced::kAll ? node.content : node.content_on_disk;
    if (unsynced == Unsynced::kSome &&
        node.content.size() > node.content_on_disk.size()) {
      const auto more = node.content.size() - content.size();
      content = node.content.substr(0, content.size() + chance(more + 1));
    }
    std::ofstream(path, std::ios::binary) << content;
    return;
  }
  const auto* names =
      unsynced == Unsynced::kAll ? &node.names : &node.names_on_disk;
  if (unsynced == Unsynced::kSome) {
    const auto changes = chance(node.changes.size() + 1);
    names = changes == 0 ? names : &node.changes[changes - 1];
  }
  fs::create_directories(path);
  for (const auto& [name, below] : *names) {
    write_node(*below, path + "/" + name, unsynced);
  }
}

}  // namespace sherd::ckpt
