// SPDX-License-Identifier: Apache-2.0
//
// How a checkpoint keeps what a communication hook remembers, such as
// PowerSGD's error feedback. It differs between ranks, so each tensor is saved
// as one of shape [ranks, ...], of which each rank has a row, in section
// "hook". Thread rule: one thread.
#pragma once

#include <sherd/ckpt/checkpoint.h>
#include <sherd/ddp/comm_hook.h>
#include <sherd/world/world.h>

namespace sherd::tools {

inline constexpr const char* kHookSection = "hook";

void add_hook_state(
    CheckpointState& state, const CommHook::State& hook, const World& world);

// Tensors for a rank's rows of what the checkpoint has, to be loaded into.
// Empty when it has none, or that of another number of ranks.
CommHook::State room_for_hook_state(
    const CheckpointContent& content, const World& world);

}  // namespace sherd::tools
