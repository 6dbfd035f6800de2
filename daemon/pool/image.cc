#include "daemon/pool/image.h"

#include <algorithm>
#include <utility>

namespace torpor {

Result<std::shared_ptr<Image>> Image::Create(HostPool& pool, Bytes size, Draw draw) {
  TORPOR_ASSIGN_OR_RETURN(auto blocks, pool.Allocate(size, kImageChunk));
  return std::shared_ptr<Image>(new Image(pool, size, std::move(blocks), std::move(draw)));
}

Image::Image(HostPool& pool, Bytes size, std::vector<HostPool::Block> blocks, Draw draw)
    : pool_(pool), size_(size), blocks_(std::move(blocks)), draw_(std::move(draw)) {
  Bytes left = size;
  for (const HostPool::Block& block : blocks_) {
    stored_ += block.size;
    for (Bytes at{}; at < block.size && left > Bytes(0); at += kImageChunk) {
      const Bytes length = std::min(left, std::min(kImageChunk, block.size - at));
      chunks_.push_back({block.data + at.value(), length, length, Encoding::kPlain, std::nullopt});
      left -= length;
    }
  }
}

Image::~Image() { pool_.Free(blocks_); }

}  // namespace torpor
