// SPDX-License-Identifier: Apache-2.0
//
// Encodes members with their samples. The coordinator gives out the lowest free samples in the
// order of the members, so that all of them together are a few ranges, cut into equal pieces. These
// are written; where this does not hold, the ranges of each member are. The names of the members
// take 12 bytes each, and none if the reader knows them. Thread rule: pure functions.
#pragma once

#include <vector>
#include "ft/protocol/messages.h"
#include "ft/wire/fields.h"

namespace sherd::ft::wire {

bool are_same_replicas(
    const std::vector<Member>& one, const std::vector<Member>& other);

void member_fields(FieldWriter& io, const std::vector<Member>& members);
void member_fields(FieldReader& io, std::vector<Member>& members);

// Without the members' names: a reader replaces the samples of the members that it has.
void sample_fields(FieldWriter& io, const std::vector<Member>& members);
void sample_fields(FieldReader& io, std::vector<Member>& members);

}  // namespace sherd::ft::wire
