//! The tests behind the threat model of `SECURITY.md`: each of its rows, with the tests that prove it.

/// A row's second cell, and its tests as `FILE::NAME`, with files below `crates/`.
#[rustfmt::skip]
pub(crate) const THREAT_TESTS: &[(&str, &[&str])] = &[
    ("keys that collide, or choose one slot or bucket", &[
        "slidegate-redis/tests/redis/slots.rs::hostile_ids_never_collide_nor_choose_their_slot",
    ]),
    ("millions of new keys, to fill the memory or reset busy keys", &[
        "slidegate/tests/behaviour/evicted.rs::a_flood_lets_no_key_start_again_and_denies_few_that_are_new",
    ]),
    ("floods of denials or idempotency keys", &[
        "slidegate/src/store/set_table.rs::a_full_table_has_sets_of_bounded_size_and_is_cleared_in_one_step",
        "slidegate/src/store/idempotency.rs::a_flood_of_ids_forgets_the_oldest_and_keeps_the_newest",
    ]),
    ("checks of a blocked key, to load Redis", &[
        "slidegate-redis/tests/redis/sharing.rs::a_flood_on_a_blocked_key_asks_the_store_ten_times_a_second_at_most",
    ]),
    ("forged `X-Forwarded-For` or `Forwarded`", &[
        "slidegate-http/tests/client_addr.rs::a_spoofed_leftmost_address_is_not_believed",
        "slidegate-http/tests/client_addr.rs::a_header_from_an_untrusted_peer_is_not_read",
    ]),
    ("log lines without end", &[
        "slidegate-server/tests/service/log_lines.rs::log_lines_that_clients_can_cause_are_limited",
        "slidegate-server/src/log_limit.rs::a_flood_of_one_client_leaves_the_lines_of_others",
    ]),
    ("notifications without end", &[
        "slidegate-server/src/record/notifications.rs::a_flood_of_keys_forgets_the_earliest_of_its_own_policy_only",
        "slidegate-server/tests/hostile/shares.rs::invented_keys_of_one_policy_leave_notifications_and_blocks_to_the_others_and_to_itself",
        "slidegate-server/tests/service/observe/notifications.rs::messages_that_exceed_the_queue_are_dropped_and_counted",
    ]),
    ("blocks by [escalation](docs/escalation.md), of keys that it invents or of others", &[
        "slidegate-server/tests/service/escalation.rs::a_flood_of_invented_keys_blocks_a_bounded_number_of_them_and_nobody_else",
        "slidegate-server/src/control/changes/escalate.rs::a_policy_takes_half_of_what_is_free_of_half_of_the_changes_and_a_quarter_of_the_bytes",
        "slidegate-server/src/record/escalations.rs::a_full_table_keeps_those_that_were_denied_often_and_those_of_other_policies",
    ]),
    ("forged or repeated messages", &[
        "slidegate-server/src/record/webhook.rs::messages_are_signed_as_the_specification_has_it",
        "slidegate-server/tests/service/observe/notifications.rs::a_key_that_nears_its_limit_is_reported_once_for_each_threshold",
    ]),
    ("control characters or markup in keys", &[
        "slidegate-server/tests/service/observe/redaction.rs::hostile_keys_break_no_line_of_any_output",
        "slidegate-server/tests/dashboard/keys.rs::a_hostile_key_is_text_wherever_it_stands",
    ]),
    ("huge penalties, to lock a key for years", &[
        "slidegate-redis/tests/redis/penalties.rs::penalties_of_any_size_close_a_key_for_two_windows_at_most_in_both_stores",
    ]),
    ("silent, slow or half-open connections, floods of them, replies that are never read", &[
        "slidegate-server/tests/hostile/stalling.rs::silent_sockets_of_one_protocol_lock_nobody_out",
        "slidegate-server/tests/hostile/stalling.rs::each_way_of_stalling_ends",
        "slidegate-server/tests/hostile/unread.rs::grpc_clients_that_take_no_replies_are_closed",
        "slidegate-server/tests/hostile/floods.rs::a_flood_of_connections_is_shed",
    ]),
    ("input that makes the check fail, so that the proxy lets the request pass", &[
        "slidegate-server/tests/deploy/proxies/hostile.rs::nothing_that_a_client_sends_passes_a_limit_behind_caddy",
        "slidegate-server/tests/hostile/still_writing.rs::http_clients_that_are_still_writing_get_their_answer",
        "slidegate-server/tests/hostile/still_writing.rs::what_is_read_after_an_answer_is_bounded",
        "slidegate-server/tests/service/http.rs::values_of_any_bytes_and_length_are_decided",
    ]),
    ("connections until no file descriptor is left", &[
        "slidegate-server/tests/hostile/descriptors.rs::under_a_low_limit_of_descriptors_the_budget_shrinks_and_all_are_served",
        "slidegate-server/tests/hostile/descriptors.rs::without_any_descriptor_connections_are_refused_until_there_are_some_again",
    ]),
    ("floods of HTTP/2 frames (PING, SETTINGS, rapid reset, CONTINUATION); gRPC calls that never end", &[
        "slidegate-server/tests/hostile/floods.rs::floods_of_http2_frames_harm_nobody_else",
        "slidegate-server/tests/hostile/grpc_floods.rs::a_client_that_sends_pings_without_end_is_closed",
        "slidegate-server/tests/hostile/grpc_floods.rs::header_lists_of_calls_without_a_message_are_not_kept",
        "slidegate-server/tests/hostile/grpc_floods.rs::messages_that_never_end_take_a_bounded_part_of_the_memory",
    ]),
    ("bodies, heads, commands and `MULTI` queues that never end", &[
        "slidegate-server/tests/hostile/shares.rs::requests_that_never_end_take_a_bounded_part_of_the_memory_and_nobody_elses",
        "slidegate-server/src/listener/unfinished.rs::the_address_that_holds_most_makes_room",
    ]),
    ("input that makes its call an error, which Envoy passes on, or that ends the shared connection", &[
        "slidegate-server/tests/deploy/envoy.rs::no_request_of_a_client_that_used_up_its_limit_passes_and_none_lifts_the_limits_of_others",
        "slidegate-server/tests/protocols/rls/hostile.rs::no_metadata_makes_a_call_an_error_or_ends_the_connection_of_others",
    ]),
    ("pipelines and batches without end, or one call under many policies, to delay its neighbours", &[
        "slidegate-server/src/wire/resp/connection.rs::a_giant_pipeline_is_served_beside_everybody_else",
        "slidegate-server/tests/hostile/floods.rs::giant_pipelines_are_served_beside_everybody_else",
        "slidegate-server/tests/hostile/floods.rs::batches_under_many_policies_are_decided_beside_everybody_else",
        "slidegate-server/tests/protocols/rls/calls.rs::what_is_no_request_is_refused_with_a_reason",
    ]),
    ("compressed bodies that unpack to large ones", &[
        "slidegate-server/tests/hostile/bombs.rs::compressed_bodies_are_refused_and_not_unpacked",
    ]),
    ("a listener that requires one, by resuming an earlier session too", &[
        "slidegate-server/tests/service/listeners.rs::with_a_client_authority_only_its_clients_come_in_and_need_no_other_credential",
        "slidegate-server/tests/service/listeners.rs::clients_with_certificates_resume_no_session_so_that_each_connection_is_checked",
    ]),
    ("two `Host` or `Authorization` headers", &[
        "slidegate-server/tests/service/access.rs::a_request_with_two_hosts_or_two_tokens_is_refused",
    ]),
    ("links or pipes in place of the snapshot's files", &[
        "slidegate/tests/behaviour/snapshots.rs::links_and_pipes_in_place_of_its_files_are_not_followed",
    ]),
    ("guessing passwords and tokens", &[
        "slidegate-server/src/access/attempts.rs::users_of_a_unix_socket_have_a_budget_each",
        "slidegate-server/tests/protocols/resp/access.rs::three_wrong_passwords_close_the_connection_and_thirty_refuse_the_address",
        "slidegate-server/tests/service/access.rs::wrong_tokens_are_limited_by_address_and_right_ones_go_on",
    ]),
    ("reset, refund, penalize, change or read what needs a token", &[
        "slidegate-server/tests/service/access.rs::each_action_needs_what_the_table_says_on_every_kind_of_listener",
        "slidegate-server/tests/service/access.rs::commands_of_the_resp_port_follow_the_same_rules",
        "slidegate-server/tests/protocols/resp/access.rs::nothing_is_decided_before_the_password",
    ]),
    ("made-up, changed, foreign or ended tickets, to empty or fill keys", &[
        "slidegate/tests/behaviour/holds/one_state.rs::a_ticket_with_any_changed_byte_is_unknown_or_refused_and_changes_nothing",
        "slidegate-redis/tests/redis/tickets.rs::a_ticket_with_any_changed_byte_is_unknown_or_refused_and_changes_nothing",
        "slidegate/tests/behaviour/holds/one_state.rs::a_cancellation_after_the_last_settlement_gives_no_request_back",
    ]),
    ("repeating a reservation with a guessed idempotency key, to get its ticket and cancel it", &[
        "slidegate-server/tests/protocols/controls/tokens.rs::a_repeated_reservation_returns_its_ticket_to_its_caller_only",
    ]),
    ("another protocol, an open reservation, a command with its own quota", &[
        "slidegate-server/tests/protocols/controls.rs::controls_hold_on_every_path_of_another_instance",
        "slidegate-server/tests/protocols/controls.rs::controls_hold_on_every_path_in_memory",
        "slidegate-server/tests/protocols/controls/queued.rs::the_first_change_counts_whether_the_store_replies_or_not",
    ]),
    ("reading on after it was taken back, reading other keys, event streams without end", &[
        "slidegate-server/tests/protocols/controls/tokens.rs::a_stream_ends_when_its_token_may_not_read_it_any_more",
        "slidegate-server/tests/protocols/controls/tokens.rs::a_token_that_was_removed_does_nothing_on_any_path",
        "slidegate-server/src/access/own_key.rs::a_token_of_one_key_reads_this_key_and_its_events_only",
        "slidegate-server/tests/service/access.rs::a_token_of_one_key_is_a_customers_own_view",
        "slidegate-server/tests/protocols/controls/tokens.rs::a_token_of_one_key_sees_no_events_of_other_keys",
        "slidegate-server/tests/hostile/shares.rs::the_streams_of_one_token_leave_others_to_customers_and_operators",
    ]),
    ("requests across sites, DNS rebinding", &[
        "slidegate-server/tests/service/access.rs::web_pages_of_other_sites_reach_no_decision",
    ]),
    ("secrets, or identifiers that a policy hides", &[
        "slidegate/src/secret.rs::secrets_are_compared_by_value_and_print_nothing",
        "slidegate-server/src/config/sources.rs::debug_of_a_configuration_shows_no_secret",
        "slidegate-server/tests/service/observe/redaction.rs::masked_and_hashed_keys_appear_in_no_output",
        "slidegate-server/tests/service/secrets.rs::no_form_of_a_wrong_url_is_shown_however_it_is_given",
        "slidegate-server/tests/service/secrets.rs::a_service_shows_no_password_of_its_store_anywhere",
        "slidegate-server/tests/service/secrets.rs::no_other_secret_is_shown_however_wrong_it_is",
    ]),
    ("reading files with passwords, tokens or keys", &[
        "slidegate-server/src/config/secret_files.rs::files_with_secrets_that_everybody_may_read_are_warned_about",
    ]),
    ("control characters in its errors, to rewrite a terminal", &[
        "slidegate-server/src/cli/output.rs::control_characters_are_escaped_and_lines_stay",
    ]),
    ("replies of any size or depth", &[
        "slidegate-redis/tests/redis/oversized.rs::a_reply_that_is_too_large_is_a_failure_that_names_the_node_and_the_bound",
    ]),
    ("reading the token of an operator's command", &[
        "slidegate-server/tests/service/cli.rs::a_token_goes_to_no_proxy_in_clear_text_and_not_where_a_redirect_leads",
    ]),
    ("instance records with control characters, of any size and number", &[
        "slidegate-server/tests/on_redis/fleet.rs::records_that_no_instance_wrote_are_counted_and_not_shown",
        "slidegate-server/src/control/fleet/record.rs::what_is_not_a_record_is_not_read",
    ]),
    ("aliases, nesting and lines that grow in memory", &[
        "lined-config/src/document.rs::bombs_are_refused_before_they_go_off",
        "slidegate-replay/src/reader.rs::too_long_line_is_skipped_and_counted",
    ]),
];
