// The first half of an exchange: planning and sending at the source, layout at the experts.
#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ep/exchange.h"

namespace fathom {
namespace {

constexpr int64_t kWordBytes = 4;

}  // namespace

Flight::Flight(Endpoint& endpoint, const ExchangeShape& shape) : endpoint_(endpoint), shape_(shape) {
  CHECK(shape.top_k >= 1 && shape.top_k <= kTopKMax);
  CHECK(shape.result == DType::kBf16 || shape.result == DType::kF32);
  CHECK(!(shape.expert_order && shape.mode == ExchangeMode::kNormal));
  const int64_t pairs = shape.max_tokens_per_rank * shape.top_k;
  const int64_t rows = shape.max_tokens_per_rank * std::min(shape.top_k, shape.num_ranks);
  pair_begin_.resize(shape.num_slots() + 1);
  pair_tokens_.resize(pairs);
  pair_of_.resize(pairs);
  header_begin_.resize(shape.num_ranks + 1);
  int64_t words = shape.num_ranks * header_words(0, 0);
  if (normal()) {
    row_begin_.resize(shape.num_ranks + 1);
    row_tokens_.resize(rows);
    row_of_.resize(pairs);
    rank_cursor_.resize(shape.num_ranks);
    rank_token_.resize(shape.num_ranks);
    words += header_words(rows, pairs) - header_words(0, 0);
  }
  headers_.resize(words);
  combined_.resize(shape.num_ranks);

  const int64_t expert_rows = shape.max_expert_rows();
  slot_begin_.resize(shape.slots_per_rank + 1);
  slot_cursor_.resize(shape.slots_per_rank);
  arrived_.resize(shape.num_ranks);
  return_begin_.resize(shape.num_ranks + 1);
  return_rows_ = AlignedBuffer(expert_rows * sizeof(int32_t));
  row_sources_ = AlignedBuffer(expert_rows * 2 * sizeof(const std::byte*));
  expert_output_ = AlignedBuffer(expert_rows * shape.result_row_bytes());
  if (normal()) {
    return_row_begin_.resize(shape.num_ranks + 1);
    reduced_ = AlignedBuffer(shape.num_ranks * shape.max_tokens_per_rank * shape.result_row_bytes());
  }
}

int64_t Flight::header_words(int64_t num_rows, int64_t num_pairs) const {
  const int64_t fixed = sizeof(Header) / kWordBytes + shape_.slots_per_rank;
  return normal() ? fixed + 3 * num_pairs + num_rows + 1 : fixed;
}

Flight::HeaderView Flight::view_header(std::span<const std::byte> bytes) const {
  HeaderView view{};
  view.fixed = reinterpret_cast<const Header*>(bytes.data());
  view.slot_counts = reinterpret_cast<const int32_t*>(view.fixed + 1);
  if (normal()) {
    view.pair_rows = view.slot_counts + shape_.slots_per_rank;
    view.row_begin = view.pair_rows + view.fixed->num_pairs;
    view.order_pairs = view.row_begin + view.fixed->num_rows + 1;
    view.order_weights = reinterpret_cast<const float*>(view.order_pairs + view.fixed->num_pairs);
  }
  return view;
}

Status Flight::check_header(int peer, std::span<const std::byte> bytes) const {
  const auto* fixed = reinterpret_cast<const Header*>(bytes.data());
  if (static_cast<int64_t>(bytes.size()) < header_words(0, 0) * kWordBytes ||
      static_cast<int64_t>(bytes.size()) != header_words(fixed->num_rows, fixed->num_pairs) * kWordBytes) {
    return make_status(StatusCode::kDataLoss, "rank {}: dispatch {} from rank {} has a header of {} bytes",
                       endpoint_.rank(), sequence_, peer, bytes.size());
  }
  return {};
}

Status Flight::send_dispatch(uint64_t sequence, const Routing& routing, const PayloadRows& payload,
                             uint32_t flags) {
  CHECK_MSG(routing.num_tokens <= shape_.max_tokens_per_rank, "more tokens than the declared maximum");
  sequence_ = sequence;
  routing_ = routing;
  sort_pairs();
  if (normal()) plan_rows();
  write_headers(flags);
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    if (!endpoint_.mask().contains(peer)) continue;
    const int64_t begin = normal() ? row_begin_[peer] : pair_begin_[peer * shape_.slots_per_rank];
    const int64_t end = normal() ? row_begin_[peer + 1] : pair_begin_[(peer + 1) * shape_.slots_per_rank];
    const int32_t* tokens = (normal() ? row_tokens_ : pair_tokens_).data() + begin;
    Message message;
    message.header = std::as_bytes(
        std::span(headers_).subspan(header_begin_[peer], header_begin_[peer + 1] - header_begin_[peer]));
    message.rows[0] = {payload.data, payload.stride_bytes, shape_.payload_row_bytes, end - begin, tokens};
    if (shape_.scale_row_bytes > 0) {
      message.rows[1] = {payload.scales, payload.scale_stride_bytes, shape_.scale_row_bytes, end - begin,
                         tokens};
    }
    RETURN_IF_ERROR(endpoint_.send(peer, Channel::kDispatch, sequence, message));
    count_rows(stats_, peer, end - begin, 0);
  }
  return {};
}

// Counting sort of (token, choice) by slot; within a slot by token. Slots of a rank are adjacent, so its
// pairs are.
void Flight::sort_pairs() {
  const int64_t num_pairs = routing_.num_tokens * shape_.top_k;
  std::fill(pair_begin_.begin(), pair_begin_.end(), 0);
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int32_t slot = routing_.slots[i];
    CHECK(slot < shape_.num_slots());
    if (slot >= 0) ++pair_begin_[slot + 1];
  }
  for (int slot = 0; slot < shape_.num_slots(); ++slot) pair_begin_[slot + 1] += pair_begin_[slot];
  // pair_begin_[slot] serves as the slot's cursor and ends as the next slot's beginning; shifted back below.
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int32_t slot = routing_.slots[i];
    if (slot < 0) {
      pair_of_[i] = -1;
      continue;
    }
    pair_of_[i] = pair_begin_[slot]++;
    pair_tokens_[pair_of_[i]] = static_cast<int32_t>(i / shape_.top_k);
  }
  for (int slot = shape_.num_slots(); slot > 0; --slot) pair_begin_[slot] = pair_begin_[slot - 1];
  pair_begin_[0] = 0;
}

// Normal mode: each token once per rank it needs.
void Flight::plan_rows() {
  std::fill(row_begin_.begin(), row_begin_.end(), 0);
  std::fill(rank_token_.begin(), rank_token_.end(), -1);
  for (int64_t i = 0; i < routing_.num_tokens * shape_.top_k; ++i) {
    if (routing_.slots[i] < 0) continue;
    const int rank = rank_of(routing_.slots[i]);
    const auto token = static_cast<int32_t>(i / shape_.top_k);
    if (rank_token_[rank] != token) {
      rank_token_[rank] = token;
      ++row_begin_[rank + 1];
    }
    row_of_[i] = row_begin_[rank + 1] - 1;
  }
  for (int rank = 0; rank < shape_.num_ranks; ++rank) row_begin_[rank + 1] += row_begin_[rank];
  for (int64_t i = 0; i < routing_.num_tokens * shape_.top_k; ++i) {
    if (routing_.slots[i] < 0) continue;
    row_tokens_[row_begin_[rank_of(routing_.slots[i])] + row_of_[i]] = static_cast<int32_t>(i / shape_.top_k);
  }
}

void Flight::write_headers(uint32_t flags) {
  header_begin_[0] = 0;
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    const int32_t* pair_begin = &pair_begin_[peer * shape_.slots_per_rank];
    const int32_t num_pairs = pair_begin[shape_.slots_per_rank] - pair_begin[0];
    const int32_t num_rows = normal() ? row_begin_[peer + 1] - row_begin_[peer] : num_pairs;
    header_begin_[peer + 1] = header_begin_[peer] + header_words(num_rows, num_pairs);
    int32_t* words = headers_.data() + header_begin_[peer];
    const Header header{flags, num_rows, num_pairs, 0};
    std::memcpy(words, &header, sizeof(header));
    words += sizeof(header) / kWordBytes;
    for (int slot = 0; slot < shape_.slots_per_rank; ++slot)
      words[slot] = pair_begin[slot + 1] - pair_begin[slot];
    if (normal()) {
      words[shape_.slots_per_rank + num_pairs] = 0;  // row_begin[0]
      rank_cursor_[peer] = 0;
    }
  }
  if (!normal()) return;
  // Tokens and choices in order: rows of a rank are numbered in token order, so their pair lists are written
  // in turn.
  for (int64_t i = 0; i < routing_.num_tokens * shape_.top_k; ++i) {
    if (routing_.slots[i] < 0) continue;
    const int peer = rank_of(routing_.slots[i]);
    const HeaderView view = view_header(std::as_bytes(std::span(headers_).subspan(header_begin_[peer])));
    const int32_t pair = pair_of_[i] - pair_begin_[peer * shape_.slots_per_rank];
    const int32_t place = rank_cursor_[peer]++;
    const_cast<int32_t*>(view.pair_rows)[pair] = row_of_[i];
    const_cast<int32_t*>(view.order_pairs)[place] = pair;
    const_cast<float*>(view.order_weights)[place] = routing_.weights[i];
    const_cast<int32_t*>(view.row_begin)[row_of_[i] + 1] = place + 1;
  }
}

Status Flight::receive_dispatch() {
  RETURN_IF_ERROR(endpoint_.wait_all(Channel::kDispatch, sequence_));
  flags_ = 0;
  std::fill(slot_begin_.begin(), slot_begin_.end(), 0);
  return_begin_[0] = 0;
  if (normal()) return_row_begin_[0] = 0;
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    int64_t num_pairs = 0, num_rows = 0;
    if (endpoint_.mask().contains(peer)) {
      const auto header = endpoint_.received(peer, Channel::kDispatch, sequence_).header;
      RETURN_IF_ERROR(check_header(peer, header));
      arrived_[peer] = view_header(header);
      flags_ |= arrived_[peer].fixed->flags;
      num_pairs = arrived_[peer].fixed->num_pairs;
      num_rows = arrived_[peer].fixed->num_rows;
      for (int slot = 0; slot < shape_.slots_per_rank; ++slot) {
        slot_begin_[slot + 1] += arrived_[peer].slot_counts[slot];
      }
    }
    return_begin_[peer + 1] = return_begin_[peer] + num_pairs;
    if (normal()) return_row_begin_[peer + 1] = return_row_begin_[peer] + num_rows;
  }
  for (int slot = 0; slot < shape_.slots_per_rank; ++slot) {
    slot_cursor_[slot] = slot_begin_[slot];
    slot_begin_[slot + 1] += slot_begin_[slot];
  }
  CHECK(num_expert_rows() <= shape_.max_expert_rows() && num_expert_rows() == return_begin_.back());
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    if (endpoint_.mask().contains(peer)) place_rows(peer);
  }
  return {};
}

// Gives each pair of one source its expert row, and notes where the row's payload is.
void Flight::place_rows(int peer) {
  const Message& message = endpoint_.received(peer, Channel::kDispatch, sequence_);
  auto* const sources = row_sources_.as<const std::byte*>();
  int32_t* const return_rows = return_rows_.as<int32_t>() + return_begin_[peer];
  int64_t pair = 0;
  for (int slot = 0; slot < shape_.slots_per_rank; ++slot) {
    for (int32_t i = 0; i < arrived_[peer].slot_counts[slot]; ++i, ++pair) {
      const int64_t expert_row = slot_cursor_[slot]++;
      const int64_t row = normal() ? arrived_[peer].pair_rows[pair] : pair;
      return_rows[pair] = static_cast<int32_t>(expert_row);
      sources[2 * expert_row] = message.rows[0].row(row);
      sources[2 * expert_row + 1] = shape_.scale_row_bytes > 0 ? message.rows[1].row(row) : nullptr;
    }
  }
}

}  // namespace fathom
