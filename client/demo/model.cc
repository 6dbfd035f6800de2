#include "client/demo/model.h"

#include <algorithm>
#include <cstring>

#include "lib/base/crc32c.h"

namespace torpor::demo {
namespace {

using std::chrono::milliseconds;

std::vector<uint64_t> Sizes(const std::vector<Tensor>& tensors) {
  std::vector<uint64_t> sizes;
  sizes.reserve(tensors.size());
  for (const Tensor& tensor : tensors) sizes.push_back(tensor.size);
  return sizes;
}

// What the KV cache holds from `offset` (a multiple of 8) on: each word differs, none is zero.
void Pattern(std::int64_t offset, std::int64_t size, std::vector<char>* out) {
  for (std::int64_t i = 0; i < size; i += 8) {
    const uint64_t word = (static_cast<uint64_t>(offset + i) / 8 + 1) * 0x9e3779b97f4a7c15u;
    std::memcpy(out->data() + i, &word, sizeof word);
  }
}

}  // namespace

const char Model::kTag[] = "weights";
const char KvCache::kTag[] = "kv_cache";

Model::Model(Session& session, const SafetensorsFile& file)
    : session_(session), file_(file), placement_(Place(Sizes(file.tensors()))) {
  for (const uint64_t size : placement_.segments) {
    addresses_.push_back(session_.Allocate(kTag, static_cast<std::int64_t>(size)));
  }
  const std::vector<Tensor>& tensors = file_.tensors();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Placement::Spot& spot = placement_.spots[i];
    for (uint64_t offset = 0; offset < tensors[i].size; offset += kPiece) {
      Piece piece;
      piece.file = file_.bytes(tensors[i]) + offset;
      piece.device = static_cast<char*>(addresses_[spot.segment]) + spot.offset + offset;
      piece.size = std::min(kPiece, static_cast<std::int64_t>(tensors[i].size - offset));
      piece.tensor = i;
      piece.offset = offset;
      piece.crc32c = Crc32c(0, piece.file, static_cast<size_t>(piece.size));
      session_.CopyToDevice(piece.device, piece.file, piece.size);
      pieces_.push_back(piece);
    }
  }
}

void Model::Read(const Piece& piece, std::vector<char>& buffer, milliseconds patience) const {
  buffer.resize(kPiece);
  const WorkGuard guard(session_, {kTag}, patience);
  session_.CopyFromDevice(buffer.data(), piece.device, piece.size);
}

Model::Comparison Model::Compare(milliseconds patience) const {
  Comparison result;
  result.tensors = file_.tensors().size();
  std::vector<char> buffer;
  size_t last_different = file_.tensors().size();
  for (const Piece& piece : pieces_) {
    Read(piece, buffer, patience);
    const auto size = static_cast<size_t>(piece.size);
    result.bytes += size;
    result.crc32c = Crc32c(result.crc32c, buffer.data(), size);
    if (std::memcmp(buffer.data(), piece.file, size) == 0 || piece.tensor == last_different) {
      continue;
    }
    const auto at = std::mismatch(buffer.begin(), buffer.begin() + piece.size, piece.file).first;
    const uint64_t byte = piece.offset + static_cast<uint64_t>(at - buffer.begin());
    result.differences.push_back(file_.tensors()[piece.tensor].name + " at byte " +
                                 std::to_string(byte));
    last_different = piece.tensor;
  }
  return result;
}

bool Model::Compute(std::uint64_t step, std::vector<char>& buffer, milliseconds patience) const {
  if (pieces_.empty()) return true;
  const Piece& piece = pieces_[step % pieces_.size()];
  Read(piece, buffer, patience);
  return Crc32c(0, buffer.data(), static_cast<size_t>(piece.size)) == piece.crc32c;
}

KvCache::KvCache(Session& session, std::int64_t size)
    : session_(session), size_(size), address_(session.Allocate(kTag, size)) {}

void KvCache::Fill(milliseconds patience) {
  std::vector<char> buffer(Model::kPiece);
  for (std::int64_t offset = 0; offset < size_; offset += Model::kPiece) {
    const std::int64_t size = std::min(Model::kPiece, size_ - offset);
    Pattern(offset, size, &buffer);
    const WorkGuard guard(session_, {kTag}, patience);
    session_.CopyToDevice(static_cast<char*>(address_) + offset, buffer.data(), size);
  }
}

KvCache::Contents KvCache::Check(milliseconds patience) const {
  std::vector<char> buffer(Model::kPiece);
  std::vector<char> pattern(Model::kPiece);
  const std::vector<char> zeros(Model::kPiece);
  bool filled = true;
  bool zero = true;
  for (std::int64_t offset = 0; offset < size_ && (filled || zero); offset += Model::kPiece) {
    const auto size = static_cast<size_t>(std::min(Model::kPiece, size_ - offset));
    {
      const WorkGuard guard(session_, {kTag}, patience);
      session_.CopyFromDevice(buffer.data(), static_cast<char*>(address_) + offset,
                              static_cast<std::int64_t>(size));
    }
    Pattern(offset, static_cast<std::int64_t>(size), &pattern);
    filled = filled && std::memcmp(buffer.data(), pattern.data(), size) == 0;
    zero = zero && std::memcmp(buffer.data(), zeros.data(), size) == 0;
  }
  return filled ? Contents::kFilled : zero ? Contents::kZero : Contents::kOther;
}

}  // namespace torpor::demo
