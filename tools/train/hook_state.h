// SPDX-License-Identifier: Apache-2.0
//
// How a checkpoint keeps what a communication hook remembers, such as
// PowerSGD's error feedback. The ranks of a hook, those of the mesh's replicate
// axis, remember tensors of equal names and shapes with different values: each
// is saved as one of shape [replicas, ...], of which each rank has a row, in
// section "hook". Where the model is sharded too, the number of the shard stands
// before its name: "1/error.h.0.c_fc.weight". Thread rule: one thread.
#pragma once

#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/world/world.h>

namespace sherd::tools {

inline constexpr const char* kHookSection = "hook";

// Collective.
void add_hook_state(
    CheckpointState& state, const CommHook::State& hook, const Mesh& mesh);

// Tensors for a rank's rows of what the checkpoint has, to be loaded into.
// Empty when it has none, or that of another mesh.
CommHook::State room_for_hook_state(
    const CheckpointContent& content, const Mesh& mesh);

}  // namespace sherd::tools
