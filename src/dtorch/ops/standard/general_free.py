"""Operators without a class that have no FLOPs worth counting: those memory bounds, and those free by nature.

Both are lists of names, not a rule: an operator that torch adds is unknown until someone has looked at it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtorch.ops.standard.general import General


def _names(text: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in text.split())


FREE = _names("""
    _assert_tensor_metadata _coalesced _dimI _dimV _functional_sym_constrain_range
    _functional_sym_constrain_range_for_size _fused_sdp_choice _has_same_storage_numel
    _nested_get_jagged_dummy _nested_get_lengths _nested_get_max_seqlen _nested_get_min_seqlen
    _nested_get_offsets _nested_get_ragged_idx _nnz _resize_output _use_cudnn_ctc_loss _use_miopen_ctc_loss
    as_strided dense_dim is_coalesced is_pinned is_same_size is_set_to lift q_per_channel_axis
    q_per_channel_scales q_per_channel_zero_points q_scale q_zero_point qscheme record_stream resize
    resize_as set sparse_dim transpose
""")
"""What they tell or change is beside the elements: sizes, strides, flags."""

MEMORY_BOUND = _names("""
    __irshift__ _add_relu
    _aminmax _amp_foreach_non_finite_check_and_unscale _amp_update_scale _assert_async
    _batch_norm_no_update _batch_norm_with_update _batch_norm_with_update_functional _chunk_cat _coalesce
    _conj_copy _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo
    _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _copy_from _copy_from_and_resize
    _cslt_compress _ctc_loss _ctc_loss_backward _cudnn_ctc_loss _cudnn_rnn_flatten_weight _cummax_helper
    _cummin_helper _dirichlet_grad _dyn_quant_pack_4bit_weight _embedding_bag _embedding_bag_backward
    _embedding_bag_dense_backward _embedding_bag_forward_only _embedding_bag_per_sample_weights_backward
    _fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward
    _fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fill_mem_eff_dropout_mask
    _functional_assert_async _functional_assert_scalar _fused_dropout _fused_moving_avg_obs_fq_helper
    _fused_moving_avg_obs_fq_helper_functional _fw_primal_copy _grid_sampler_2d_cpu_fallback
    _grid_sampler_2d_cpu_fallback_backward _histogramdd_bin_edges _histogramdd_from_bin_cts
    _histogramdd_from_bin_tensors _indices_copy _is_all_true _is_any_true
    _jagged_to_padded_dense_forward _lazy_clone _linalg_check_errors _local_scalar_dense _logcumsumexp
    _make_dual_copy _make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor _masked_scale
    _masked_softmax _masked_softmax_backward _native_batch_norm_legit_functional _neg_view_copy
    _new_zeros_with_same_feature_meta _pack_padded_sequence _padded_dense_to_jagged_forward
    _philox_key_fold_in _philox_key_split _philox_normal _philox_uniform _pin_memory _reshape_alias_copy
    _reshape_copy _sample_dirichlet _segment_reduce_backward _sparse_csr_prod
    _sparse_csr_sum _sparse_log_softmax _sparse_log_softmax_backward_data _sparse_mask_projection
    _sparse_semi_structured_apply _sparse_semi_structured_apply_dense _sparse_semi_structured_tile
    _sparse_softmax _sparse_softmax_backward_data _sparse_sum _sparse_sum_backward _spdiags _stack
    _standard_gamma _standard_gamma_grad _thnn_fused_gru_cell _thnn_fused_gru_cell_backward
    _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _to_dense _to_sparse _to_sparse_bsc
    _to_sparse_bsr _to_sparse_csc _to_sparse_csr _to_sparse_semi_structured _transform_bias_rescale_qkv
    _unique _unique2 _unsafe_masked_index _unsafe_masked_index_put_accumulate _weight_norm_interface
    _weight_norm_interface_backward affine_grid_generator alias_copy allclose as_strided_copy
    as_strided_scatter batch_norm_backward batch_norm_backward_elemt batch_norm_backward_reduce
    batch_norm_elemt batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_stats bernoulli
    binary_cross_entropy_with_logits bincount binomial block_diag copy_sparse_to_sparse
    cudnn_affine_grid_generator
    cudnn_affine_grid_generator_backward cudnn_batch_norm cudnn_batch_norm_backward cudnn_grid_sampler
    cudnn_grid_sampler_backward dequantize detach_copy diag_embed diagonal_copy diagonal_scatter dist
    embedding_renorm expand_copy fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_tensor_affine_cachemask gcd glu_backward_jvp glu_jvp hash_tensor histc histogram
    index_reduce int_repr isin lcm lift_fresh_copy linalg__powsum linspace logspace masked_scatter_backward
    masked_select max_pool2d_backward median miopen_batch_norm miopen_batch_norm_backward miopen_ctc_loss
    multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_backward
    multilabel_margin_loss_forward multinomial nanmedian narrow_copy native_norm nonzero nonzero_static norm
    normal permute_copy poisson put quantize_per_channel quantize_per_tensor quantize_per_tensor_dynamic
    quantized_batch_norm quantized_max_pool1d quantized_max_pool2d quantized_max_pool3d repeat_interleave
    rot90 rrelu_with_noise rrelu_with_noise_functional searchsorted segment_reduce select_copy slice_copy
    sparse_mask split_copy split_with_sizes_copy squeeze_copy t_copy to_padded_tensor trace
    transpose_copy unbind_copy unfold_copy unique_consecutive unique_dim unique_dim_consecutive
    unsqueeze_copy values_copy view_as_complex_copy view_as_real_copy view_copy
""")
"""They look at, copy or combine elements a few times each: bytes are what they cost."""


def _rows(call: General) -> int:
    return prod(call.shape_of("indices")) * prod(call.shapes[0][1:])  # type: ignore[index]


def _result(call: General) -> int:
    return prod(call.result())


PICKED: dict[str, Callable[[General], int]] = {
    **dict.fromkeys(_names("_embedding_bag _embedding_bag_forward_only embedding_renorm"), _rows),
    **dict.fromkeys(_names("diagonal_copy narrow_copy select_copy slice_copy unfold_copy"), _result),
    "aten.trace": lambda call: min(call.shapes[0] or (0,)),
}
"""Operators that read a part of their first tensor: how many elements."""
