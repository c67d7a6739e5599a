// The second half of an exchange: results go back to the tokens' ranks and are added in a fixed order.
#include <algorithm>
#include <array>

#include "base/check.h"
#include "ep/exchange.h"
#include "kernels/elementwise.h"
#include "kernels/prefetch.h"

namespace fathom {
namespace {

// A token's results, in the order in which they are added.
struct TokenParts {
  int64_t count = 0;
  std::array<float, kTopKMax> weights;
  std::array<const void*, kTopKMax> rows;

  void add(float weight, const std::byte* row) {
    weights[count] = weight;
    rows[count++] = row;
  }
  void sum(const ExchangeShape& shape, float* out) const {
    weighted_sum({shape.result, count, weights.data(), rows.data()}, shape.hidden, out);
  }
};

}  // namespace

ExchangeStats& ExchangeStats::operator+=(const ExchangeStats& other) {
  dispatch_rows += other.dispatch_rows;
  combine_rows += other.combine_rows;
  dispatch_bytes += other.dispatch_bytes;
  combine_bytes += other.combine_bytes;
  remote_dispatch_bytes += other.remote_dispatch_bytes;
  remote_combine_bytes += other.remote_combine_bytes;
  return *this;
}

void Flight::count_rows(ExchangeStats& stats, int peer, int64_t dispatched, int64_t combined) const {
  const int64_t dispatch_bytes =
      dispatched * (kDispatchRowHeaderBytes + shape_.payload_row_bytes + shape_.scale_row_bytes);
  const int64_t combine_bytes = combined * shape_.result_row_bytes();
  const bool remote = peer != endpoint_.rank();
  stats += {dispatched,
            combined,
            dispatch_bytes,
            combine_bytes,
            remote ? dispatch_bytes : 0,
            remote ? combine_bytes : 0};
}

ExchangeStats Flight::take_stats() { return std::exchange(stats_, {}); }

ExchangeStats ExpertExchange::take_stats() {
  ExchangeStats stats;
  for (Flight& flight : flights_) stats += flight.take_stats();
  return stats;
}

int64_t Flight::num_return_rows() const { return normal() ? return_row_begin_.back() : 0; }

void Flight::reduce(int64_t begin, int64_t end, float* scratch) {
  int peer = static_cast<int>(std::upper_bound(return_row_begin_.begin(), return_row_begin_.end(), begin) -
                              return_row_begin_.begin()) -
             1;
  const int32_t* const return_rows = return_rows_.as<int32_t>();
  for (int64_t row = begin; row < end; ++row) {
    while (row >= return_row_begin_[peer + 1]) ++peer;
    const HeaderView& from = arrived_[peer];
    const int64_t local = row - return_row_begin_[peer];
    TokenParts parts;
    for (int32_t i = from.row_begin[local]; i < from.row_begin[local + 1]; ++i) {
      const auto result = [&](int32_t place) {
        const int64_t expert_row = return_rows[return_begin_[peer] + from.order_pairs[place]];
        return expert_output_.data() + expert_row * shape_.result_row_bytes();
      };
      // The next token's results are elsewhere: no hardware prefetcher knows where.
      if (i + shape_.top_k < from.fixed->num_pairs)
        prefetch_row(result(i + shape_.top_k), shape_.result_row_bytes());
      parts.add(from.order_weights[i], result(i));
    }
    parts.sum(shape_, scratch);
    from_f32(scratch, shape_.hidden, shape_.result, reduced_.data() + row * shape_.result_row_bytes());
  }
}

Status Flight::send_combine() {
  // Payloads have been used. Before the first send: whoever has our answer may start exchange + 2.
  endpoint_.release(Channel::kDispatch, sequence_);
  const int64_t row_bytes = shape_.result_row_bytes();
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    if (!endpoint_.mask().contains(peer)) continue;
    Message message;
    if (normal()) {
      const int64_t begin = return_row_begin_[peer];
      message.rows[0] = {reduced_.data() + begin * row_bytes, row_bytes, row_bytes,
                         return_row_begin_[peer + 1] - begin, nullptr};
    } else {
      const int64_t begin = return_begin_[peer];
      message.rows[0] = {expert_output_.data(), row_bytes, row_bytes, return_begin_[peer + 1] - begin,
                         return_rows_.as<int32_t>() + begin};
    }
    RETURN_IF_ERROR(endpoint_.send(peer, Channel::kCombine, sequence_, message));
    count_rows(stats_, peer, 0, message.rows[0].num_rows);
  }
  return {};
}

Status Flight::receive_combine() {
  RETURN_IF_ERROR(endpoint_.wait_all(Channel::kCombine, sequence_));
  for (int peer = 0; peer < shape_.num_ranks; ++peer) {
    combined_[peer] =
        endpoint_.mask().contains(peer) ? &endpoint_.received(peer, Channel::kCombine, sequence_) : nullptr;
  }
  return {};
}

void Flight::combine_token(int64_t token, float* out) const {
  normal() ? combine_normal(token, out) : combine_low_latency(token, out);
}

void Flight::combine_low_latency(int64_t token, float* out) const {
  const int64_t base = token * shape_.top_k;
  std::array<int, kTopKMax> order;
  for (int k = 0; k < shape_.top_k; ++k) order[k] = k;
  if (shape_.expert_order) {
    std::sort(order.begin(), order.begin() + shape_.top_k,
              [&](int a, int b) { return routing_.experts[base + a] < routing_.experts[base + b]; });
  }
  TokenParts parts;
  for (int i = 0; i < shape_.top_k; ++i) {
    const int64_t choice = base + order[i];
    if (pair_of_[choice] < 0) continue;
    const int rank = rank_of(routing_.slots[choice]);
    const std::byte* row =
        combined_[rank]->rows[0].row(pair_of_[choice] - pair_begin_[rank * shape_.slots_per_rank]);
    parts.add(routing_.weights[choice], row);
  }
  parts.sum(shape_, out);
}

void Flight::combine_normal(int64_t token, float* out) const {
  // The ranks that hold a part of this token's sum, ascending, each once.
  std::array<std::pair<int, int32_t>, kTopKMax> places;
  int num_places = 0;
  for (int64_t choice = token * shape_.top_k; choice < (token + 1) * shape_.top_k; ++choice) {
    if (routing_.slots[choice] >= 0)
      places[num_places++] = {rank_of(routing_.slots[choice]), row_of_[choice]};
  }
  std::sort(places.begin(), places.begin() + num_places);
  num_places = static_cast<int>(std::unique(places.begin(), places.begin() + num_places) - places.begin());
  TokenParts parts;
  for (int i = 0; i < num_places; ++i) {
    const auto [rank, row] = places[i];
    parts.add(1.0f, combined_[rank]->rows[0].row(row));
  }
  parts.sum(shape_, out);
}

void Flight::finish() { endpoint_.release(Channel::kCombine, sequence_); }

}  // namespace fathom
