#pragma once
// Division: parameters in flat buffers that are cut into a piece for each rank of a World.

#include <unordered_map>
#include <utility>

#include "core/state_dict.h"
#include "dist/exchange.h"
#include "optim/sharing.h"

namespace mixtape::dist {

class Division final : public optim::Sharing {
 public:
  struct Item {  // a parameter
    Tensor whole, piece;
    bool uncut = false;            // one rank has all of it, as a piece of its shape
    size_t buffer = 0, place = 0;  // in Buffer::items
    int64_t offset = 0;            // in Buffer::data
    Cut cut = {};                  // of its elements
  };
  struct Buffer {
    Tensor data = {};
    std::vector<size_t> items = {};                       // in the order of offsets
    int64_t size = 0;                                     // of data
    int64_t bytes = 0;                                    // of gradients
    std::vector<std::pair<size_t, int64_t>> joints = {};  // see Bucket::Options::cut
    Cut cut = {};                                         // of data
  };

  // Divides those of the parameters that train, which become views of the buffers, in reverse
  // order: that in which their gradients come. Those that are `uncut` go to one rank each.
  Division(const std::shared_ptr<Exchange>& exchange, const std::vector<Tensor>& parameters,
           const std::vector<bool>& uncut, double bucket_mb);
  void end();  // parameters are whole again, and pieces of no use

  // By a parameter, or by its piece.
  bool has(const Tensor& t) const { return by_id_.contains(t.id()); }
  const Item& item(const Tensor& t) const { return items_[by_id_.at(t.id())]; }
  const Item& item(size_t i) const { return items_[i]; }
  // The rank of an uncut parameter, and whether it is another than this one.
  static size_t owner(const Item& item);
  bool is_elsewhere(const Tensor& t) const { return item(t).uncut && owner(item(t)) != rank_; }
  const Buffer& buffer(size_t i) const { return buffers_[i]; }
  // A copy of what this rank's piece of a parameter has of a tensor of its shape, or of one with a
  // number for each `block` of elements.
  Tensor own_part(const Item& item, const Tensor& whole, int64_t block) const;
  // Every rank's dict, on the CPU, if any parameter is uncut. All call it.
  std::vector<StateDict> gather(const StateDict& own) const;
  // The tensor of which all ranks have such parts, on the CPU. All call it.
  Tensor joined(const Item& item, const Tensor& part, int64_t block) const;

  Tensor piece_of(const Tensor& t) const override { return item(t).piece; }
  Tensor whole_of(const Tensor& t) const override { return item(t).whole; }
  int64_t first_of(const Tensor& t) const override { return item(t).cut[rank_]; }
  Tensor joined(const Tensor& t, const Tensor& part) const override {
    return joined(item(t), part, 1);
  }
  void begin_step() override;
  void end_step() override;
  Tensor join(const std::vector<Tensor>& tensors, const Tensor& parts, const Tensor& found,
              bool steps) override;

 private:
  void lay(double bucket_mb);
  void cut_buffers();
  Tensor place_of(const Item& item) const;  // its view of the buffer
  static Cut cut_of(const Item& item, int64_t block);
  std::pair<size_t, int64_t> joint_near(const Buffer& buffer, int64_t wanted) const;
  int64_t parts_of(const Tensor& t, int rank) const;
  Tensor in_order(const std::vector<Tensor>& tensors, const std::vector<std::vector<double>>& all,
                  size_t flags, int64_t width) const;
  std::vector<std::vector<double>> meet(const std::vector<double>& words) const;

  std::shared_ptr<Exchange> exchange() const;  // throws Error if its World has ended

  const std::weak_ptr<Exchange> exchange_;
  const size_t rank_, ranks_;
  std::vector<Item> items_;
  std::vector<Buffer> buffers_;
  std::unordered_map<const void*, size_t> by_id_;
  int64_t steps_ = 0;
  bool has_met_ = false;  // in this step
};

std::shared_ptr<Division> division_of(const Tensor& parameter);  // null if it is not divided

}  // namespace mixtape::dist
