// The contract of endpoint.h, on each transport (inproc so far), under delay, reorder, duplicates and lost
// peers.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "transport/faults.h"
#include "transport/inproc.h"

namespace fathom {
namespace {

constexpr int kRowBytes = 24;

// Rank code run by every rank's thread; the first failure of each rank is returned.
std::vector<Status> run_ranks(int num_ranks, const std::function<Status(int)>& body) {
  std::vector<Status> statuses(num_ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = body(rank); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

std::unique_ptr<InprocGroup> make_group(int num_ranks, Duration timeout = std::chrono::seconds(60)) {
  return InprocGroup::create({.num_ranks = num_ranks, .timeout = timeout, .spin_iterations = 0}).value();
}

uint8_t payload_byte(int sender, int receiver, Channel channel, uint64_t sequence, int row) {
  return static_cast<uint8_t>(hash_u64(sender, receiver, sequence, static_cast<int>(channel) * 64 + row));
}

int num_rows(int sender, int receiver, uint64_t sequence) {
  return static_cast<int>(hash_u64(9, sender, receiver, sequence) % 4);
}

// A rank's send buffers for one (channel, parity): rows for every peer, addressed through an index. They
// outlive the ranks' threads: a rank may be done while its peers still read its last exchange.
struct SendBuffer {
  std::vector<std::byte> bytes;
  std::vector<int32_t> index;
  std::vector<std::byte> header;
};

Status exchange(Endpoint& endpoint, Channel channel, uint64_t sequence, SendBuffer& buffer) {
  const int n = endpoint.num_ranks();
  buffer.bytes.assign(n * 4 * kRowBytes, std::byte{0});
  buffer.index.assign(n * 4, 0);
  buffer.header.assign(n, std::byte{0});
  for (int peer = 0; peer < n; ++peer) {
    const int rows = num_rows(endpoint.rank(), peer, sequence);
    for (int row = 0; row < rows; ++row) {
      buffer.index[peer * 4 + row] = peer * 4 + (3 - row);  // scattered on purpose
      std::memset(&buffer.bytes[(peer * 4 + 3 - row) * kRowBytes],
                  payload_byte(endpoint.rank(), peer, channel, sequence, row), kRowBytes);
    }
    buffer.header[peer] = std::byte(rows);
    Message message;
    message.header = {&buffer.header[peer], 1};
    message.rows[0] = {buffer.bytes.data(), kRowBytes, kRowBytes, rows, &buffer.index[peer * 4]};
    RETURN_IF_ERROR(endpoint.send(peer, channel, sequence, message));
  }
  return {};
}

Status receive_and_check(Endpoint& endpoint, Channel channel, uint64_t sequence) {
  RETURN_IF_ERROR(endpoint.wait_all(channel, sequence));
  for (int peer = 0; peer < endpoint.num_ranks(); ++peer) {
    const Message& message = endpoint.received(peer, channel, sequence);
    const int rows = num_rows(peer, endpoint.rank(), sequence);
    if (message.header.size() != 1 || message.header[0] != std::byte(rows) ||
        message.rows[0].num_rows != rows) {
      return make_status(StatusCode::kInternal, "rank {}: wrong size from {}", endpoint.rank(), peer);
    }
    for (int row = 0; row < rows; ++row) {
      for (int i = 0; i < kRowBytes; ++i) {
        if (message.rows[0].row(row)[i] !=
            std::byte(payload_byte(peer, endpoint.rank(), channel, sequence, row))) {
          return make_status(StatusCode::kInternal, "rank {}: wrong byte from {}", endpoint.rank(), peer);
        }
      }
    }
  }
  endpoint.release(channel, sequence);
  return {};
}

struct SendBuffers {
  SendBuffer& of(Channel channel, uint64_t sequence) {
    return buffers[static_cast<int>(channel)][sequence % 2];
  }
  SendBuffer buffers[kNumChannels][2];
};

// Dispatch and combine alternate, as in a layer.
Status run_layers(Endpoint& endpoint, SendBuffers& buffers, int num_layers) {
  for (uint64_t sequence = 0; sequence < static_cast<uint64_t>(num_layers); ++sequence) {
    for (Channel channel : {Channel::kDispatch, Channel::kCombine}) {
      RETURN_IF_ERROR(exchange(endpoint, channel, sequence, buffers.of(channel, sequence)));
      RETURN_IF_ERROR(receive_and_check(endpoint, channel, sequence));
    }
  }
  return {};
}

// Two micro-batches half a layer apart: exchange s + 1 of a channel is sent before s has been read.
Status run_overlapped(Endpoint& endpoint, SendBuffers& buffers, int num_layers) {
  const auto send = [&](Channel channel, uint64_t sequence) {
    return exchange(endpoint, channel, sequence, buffers.of(channel, sequence));
  };
  const uint64_t end = 2 * num_layers;
  RETURN_IF_ERROR(send(Channel::kDispatch, 0));
  for (uint64_t sequence = 0; sequence < end; ++sequence) {
    if (sequence + 1 < end) RETURN_IF_ERROR(send(Channel::kDispatch, sequence + 1));
    RETURN_IF_ERROR(receive_and_check(endpoint, Channel::kDispatch, sequence));
    RETURN_IF_ERROR(send(Channel::kCombine, sequence));
    RETURN_IF_ERROR(receive_and_check(endpoint, Channel::kCombine, sequence));
  }
  return {};
}

void expect_all_ok(const std::vector<Status>& statuses) {
  for (const Status& status : statuses) EXPECT_TRUE(status.ok()) << status.to_string();
}

TEST(Transport, EveryRankReceivesWhatEveryRankSent) {
  for (int num_ranks : {1, 2, 5, 32}) {
    auto group = make_group(num_ranks);
    std::vector<SendBuffers> buffers(num_ranks);
    expect_all_ok(run_ranks(num_ranks,
                            [&](int rank) { return run_layers(*group->endpoint(rank), buffers[rank], 20); }));
  }
}

TEST(Transport, RanksThatFarOutnumberTheCores) {
  auto group = make_group(144);
  std::vector<SendBuffers> buffers(144);
  expect_all_ok(
      run_ranks(144, [&](int rank) { return run_layers(*group->endpoint(rank), buffers[rank], 4); }));
}

TEST(Transport, TwoExchangesOfAChannelMayBeInFlight) {
  auto group = make_group(6);
  std::vector<SendBuffers> buffers(6);
  expect_all_ok(
      run_ranks(6, [&](int rank) { return run_overlapped(*group->endpoint(rank), buffers[rank], 20); }));
}

TEST(Transport, SurvivesDelayReorderAndDuplicates) {
  auto group = make_group(7);
  std::vector<SendBuffers> buffers(7);
  expect_all_ok(run_ranks(7, [&](int rank) {
    FaultPlan plan{.seed = 5, .reorder = true, .duplicate_share = 0.3};
    plan.delay = [](Rng& rng) {
      if (rng.next_below(8) == 0) std::this_thread::sleep_for(std::chrono::microseconds(rng.next_below(300)));
    };
    FaultyEndpoint endpoint(group->endpoint(rank), plan);
    return run_layers(endpoint, buffers[rank], 20);
  }));
}

TEST(Transport, ALostPeerIsADeadlineThatNamesIt) {
  auto group = make_group(4, std::chrono::milliseconds(50));
  std::vector<SendBuffers> buffers(4);
  const auto statuses = run_ranks(4, [&](int rank) {
    FaultPlan plan;
    if (rank == 2) plan.lost_peers = {0, 1, 3};
    FaultyEndpoint endpoint(group->endpoint(rank), plan);
    return run_layers(endpoint, buffers[rank], 3);
  });
  for (int rank : {0, 1, 3}) {
    EXPECT_EQ(statuses[rank].code(), StatusCode::kDeadlineExceeded);
    EXPECT_NE(statuses[rank].message().find("dispatch 0 misses rank(s) 2 after"), std::string::npos)
        << statuses[rank].message();
  }
  EXPECT_FALSE(statuses[2].ok());
}

// Rank 0 waits while rank 1, before it sends, stops the whole process for longer than the time-out.
int exit_code_of_a_group_that_is_stopped(Duration timeout) {
  const auto group = make_group(2, timeout);
  std::vector<SendBuffer> buffers(2);
  const std::vector<Status> statuses = run_ranks(2, [&](int rank) -> Status {
    const auto endpoint = group->endpoint(rank);
    if (rank == 1) {
      std::this_thread::sleep_for(timeout / 5);
      raise(SIGSTOP);
      std::this_thread::sleep_for(timeout / 5);
    }
    RETURN_IF_ERROR(exchange(*endpoint, Channel::kDispatch, 0, buffers[rank]));
    return receive_and_check(*endpoint, Channel::kDispatch, 0);
  });
  for (const Status& status : statuses) {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.to_string().c_str());
  }
  return statuses[0].ok() && statuses[1].ok() ? 0 : 1;
}

TEST(Transport, APauseOfTheWholeProcessIsNoSilenceOfAPeer) {
  constexpr auto kTimeout = std::chrono::milliseconds(250);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(exit_code_of_a_group_that_is_stopped(kTimeout));
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(state));
  std::this_thread::sleep_for(2 * kTimeout);
  kill(child, SIGCONT);
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state) && WEXITSTATUS(state) == 0);
}

TEST(Transport, AbortWakesTheWaitingAtOnce) {
  auto group = make_group(3);
  std::vector<SendBuffers> buffers(3);
  const auto statuses = run_ranks(3, [&](int rank) -> Status {
    if (rank == 2) {
      group->abort("rank 2 failed");
      return {};
    }
    return run_layers(*group->endpoint(rank), buffers[rank], 1);
  });
  for (int rank : {0, 1}) {
    EXPECT_EQ(statuses[rank].code(), StatusCode::kUnavailable);
    EXPECT_NE(statuses[rank].message().find("rank 2 failed"), std::string::npos);
  }
}

TEST(Transport, TheNextEpochGoesOnWithoutAMaskedRankAndRefusesTheOldOne) {
  auto group = make_group(3, std::chrono::seconds(60));
  auto stale = group->endpoint(1);
  RankMask mask = RankMask::all(3);
  mask.remove(1);
  group->abort("rank 1 is gone");
  group->reconfigure(mask);
  EXPECT_EQ(stale->send(0, Channel::kDispatch, 0, {}).code(), StatusCode::kFailedPrecondition);
  expect_all_ok(run_ranks(3, [&](int rank) -> Status {
    if (rank == 1) return {};
    auto endpoint = group->endpoint(rank);
    for (int peer : {0, 2}) RETURN_IF_ERROR(endpoint->send(peer, Channel::kDispatch, 0, {}));
    return endpoint->wait_all(Channel::kDispatch, 0);
  }));
}

TEST(Transport, AThirdExchangeInFlightIsRefused) {
  auto group = make_group(1);
  auto endpoint = group->endpoint(0);
  for (uint64_t sequence : {0, 1}) {
    ASSERT_TRUE(endpoint->send(0, Channel::kCombine, sequence, {}).ok());
  }
  EXPECT_EQ(endpoint->send(0, Channel::kCombine, 2, {}).code(), StatusCode::kFailedPrecondition);
  ASSERT_TRUE(endpoint->wait_all(Channel::kCombine, 0).ok());
  endpoint->release(Channel::kCombine, 0);
  EXPECT_TRUE(endpoint->send(0, Channel::kCombine, 2, {}).ok());
}

TEST(Transport, RefusesImpossibleGroups) {
  EXPECT_EQ(InprocGroup::create({.num_ranks = 0}).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(InprocGroup::create({.num_ranks = kMaxRanks + 1}).status().code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace fathom
