//! The tests behind the fault matrix of `docs/failures.md`: each of its rows, with the tests that prove it.

/// A row's first cell, and its tests as `FOLDER::FILE::NAME`.
#[rustfmt::skip]
pub(crate) const FAULT_TESTS: &[(&str, &[&str])] = &[
    // Server
    ("not there at start-up", &[
        "redis::faults::a_server_that_is_absent_at_the_start_is_used_when_it_appears",
        "on_redis::shared_store::it_starts_without_redis_uses_fallbacks_and_switches_when_redis_starts",
    ]),
    ("killed, back without data", &[
        "redis::faults::a_server_that_was_killed_and_comes_back_empty_is_used_again",
        "redis::faults::the_fallback_gives_what_remained_and_no_more_than_the_share",
        "redis::faults::an_exhausted_key_stays_denied_by_the_fallback_until_its_wait_ends",
    ]),
    ("stands still (`SIGSTOP`, a fork, swapping)", &[
        "redis::faults::a_server_that_wakes_charges_nobody_who_has_given_up",
        "on_redis::shared_store::a_frozen_redis_delays_no_response_and_one_log_line_stands_for_many",
    ]),
    ("`DEBUG SLEEP`, a slow command", &["redis::outages::a_server_that_sleeps_is_answered_for_and_charges_nobody_when_it_wakes"]),
    ("`CLIENT PAUSE`", &["redis::faults::a_server_whose_clients_are_paused_charges_nobody_afterwards"]),
    ("runs a foreign script (`BUSY`)", &["redis::refusals::a_server_that_is_busy_with_a_foreign_script_is_answered_for_until_that_is_killed"]),
    ("out of memory (`OOM`)", &["redis::refusals::a_server_without_memory_refuses_before_it_charges_any_policy"]),
    ("evicts keys (`allkeys-lru`)", &[
        "redis::outages::keys_that_redis_evicts_start_again_and_the_examination_says_so",
        "on_redis::shared_store::evicted_keys_are_logged_and_counted",
    ]),
    ("`READONLY`", &["redis::refusals::a_server_that_became_a_replica_is_answered_for_until_it_is_a_master"]),
    ("`NOREPLICAS`", &["redis::refusals::a_server_without_the_replicas_it_needs_charges_nothing_until_it_has_them"]),
    ("`MISCONF`", &["redis::refusals::a_server_that_cannot_save_charges_nothing_until_it_can"]),
    ("`LOADING`", &["redis::refusals::a_server_that_still_loads_its_data_is_answered_for_until_it_has"]),
    ("`SCRIPT FLUSH`", &["redis::faults::forgotten_scripts_are_loaded_again_without_a_failure"]),
    ("`FLUSHALL`", &[
        "redis::faults::usage_starts_anew_on_a_server_that_was_flushed",
        "on_redis::control::changes_survive_flushall",
        "on_redis::shared_store::usage_that_a_restart_lost_is_told_until_its_longest_window_has_passed",
    ]),
    ("`maxclients` reached", &["redis::faults::a_server_with_too_many_clients_is_answered_for_and_used_when_it_has_room"]),
    ("password changed, permission missing", &[
        "redis::refusals::a_password_that_was_changed_and_a_user_that_was_deleted_are_reported_and_found_again",
        "redis::refusals::a_missing_right_is_named_and_found_when_it_is_granted",
    ]),
    ("refuses a command in scripts", &[
        "redis::self_test::a_self_test_names_each_command_that_scripts_may_not_call",
        "on_redis::sharing::a_store_that_refuses_decisions_is_not_called_shared_anywhere",
        "on_redis::sharing::an_instance_that_requires_sharing_starts_only_if_limits_are_shared",
    ]),
    ("unavailable after the fleet grew", &[
        "redis::instances::the_fallbacks_share_is_that_of_the_last_count",
        "on_redis::sharing::shares_of_a_fleet_that_grew_add_up_to_the_limit",
    ]),
    ("foreign or damaged values", &[
        "redis::hostile::values_that_are_not_ours_are_refused_and_left_alone",
        "redis::hostile::a_value_that_was_cut_off_is_never_read_as_something_else",
    ]),
    ("malformed replies", &["redis::hostile::replies_that_no_script_gives_decide_nothing_and_harm_nobody_later"]),
    ("[huge replies](redis.md#size-of-replies)", &[
        "redis::oversized::a_reply_that_is_too_large_is_a_failure_that_names_the_node_and_the_bound",
        "redis::oversized::replies_without_an_end_take_little_memory",
    ]),
    // Network
    ("connections are lost", &[
        "redis::faults::callers_survive_a_storm_of_killed_connections_and_are_charged_once",
        "redis::faults::a_call_whose_reply_is_cut_off_was_made_once",
    ]),
    ("packets are dropped", &["redis::faults::a_black_hole_opens_the_breaker_after_a_few_calls_and_the_others_are_answered_at_once"]),
    ("high latency", &["redis::faults::a_slow_server_is_waited_for_within_the_deadline_and_no_longer"]),
    ("latency varies", &["redis::outages::a_network_whose_delay_varies_charges_each_check_at_most_once"]),
    ("TLS: wrong certificate, or none", &[
        "redis::tls::a_server_of_another_authority_is_refused_and_charged_nothing",
        "redis::tls::a_server_that_asks_for_client_certificates_takes_those_of_its_authority_alone",
        "redis::tls::a_port_without_tls_is_distinguished_from_one_that_is_away",
    ]),
    ("an instance has no file descriptors left", &["redis::faults::a_program_without_file_descriptors_is_answered_for_and_connects_when_it_has_some"]),
    // Failover
    ("Sentinel promotes a replica", &["redis::faults::a_master_that_was_killed_is_left_for_the_one_that_the_sentinels_name"]),
    ("a cluster promotes a replica", &["redis::cluster::a_master_that_freezes_or_dies_is_left_for_its_replica_and_nobody_is_charged_twice"]),
    ("a replica takes over that lags", &[
        "redis::cluster::a_replica_that_takes_over_without_the_last_charges_admits_those_again_and_no_more",
        "on_redis::control::changes_survive_a_failover_to_a_replica_that_lags",
    ]),
    ("planned failover", &["redis::cluster::a_graceful_failover_fails_no_request"]),
    ("a slot moves", &["redis::cluster::a_slot_on_its_way_fails_no_request_of_64_callers_for_keys_that_are_not_there"]),
    ("`TRYAGAIN`: keys of a hash tag at both ends of a moving slot", &["redis::outages::keys_of_a_hash_tag_at_both_ends_of_a_moving_slot_are_charged_together_or_not_at_all"]),
    ("slots without a node", &["redis::cluster::a_cluster_that_requires_full_coverage_stops_whole_and_another_in_part"]),
    ("a minority is left", &["redis::cluster::a_cluster_without_a_majority_decides_nothing_and_is_used_again_when_it_has_one"]),
    ("one of several slots does not answer", &["redis::slots::a_denial_in_one_slot_holds_although_another_does_not_answer"]),
    // Clocks
    ("the server's clock is set back", &["redis::clocks::a_clock_that_is_set_back_admits_no_more_and_locks_nobody_out_for_long"]),
    ("the server's clock jumps ahead", &[
        "redis::clocks::a_clock_that_is_set_forward_and_corrected_admits_one_limit_more_at_most",
        "redis::clocks::jumps_of_the_servers_clock_are_counted_and_found_by_an_examination",
    ]),
    ("a failover to another clock", &["redis::clocks::a_failover_to_a_server_with_another_clock_is_a_jump"]),
    ("an instance's wall clock is wrong or set", &["redis::outages::the_wall_clock_of_a_client_decides_nothing"]),
    // Memory store
    ("the process is killed, with [snapshots](day-to-day.md#snapshots-of-the-memory-store)", &["service::snapshots::a_process_that_is_killed_at_any_moment_leaves_the_last_good_snapshot"]),
    ("the snapshot is damaged, cut off or newer", &["service::snapshots::a_damaged_snapshot_is_rejected_loudly_and_kept"]),
    ("the disk is full, the directory is gone", &["service::snapshots::a_place_that_cannot_be_written_is_an_error_at_the_start_and_a_warning_later"]),
    ("the date is corrected during a restart", &["service::snapshots::a_wall_clock_that_is_corrected_during_a_restart_frees_nobody"]),
    ("a flood of unique keys", &["service::memory_bound::a_flood_over_resp_leaves_memory_flat_and_busy_keys_their_counts"]),
];
