//! AWS application load balancers. Columns are only ever added at the end.

use crate::format::field::{Columns, Field, HOST, USER_AGENT, target};
use crate::format::nginx;
use crate::format::template::Syntax;
use crate::format::time::Unit;

pub(crate) const SYNTAX: Syntax = Syntax {
    target: |column| target(COLUMNS, column),
    header_attribute: |_| None,
    // The oldest logs have no more.
    required: 14,
    ..nginx::SYNTAX
};

pub(crate) const TEXT: &str = "$type $time $elb $client $target $request_processing_time $target_processing_time \
     $response_processing_time $elb_status_code $target_status_code $received_bytes $sent_bytes \"$request\" \
     \"$user_agent\" $ssl_cipher $ssl_protocol $target_group_arn \"$trace_id\" \"$domain_name\" \"$chosen_cert_arn\" \
     $matched_rule_priority $request_creation_time \"$actions_executed\" \"$redirect_url\" \"$error_reason\" \
     \"$target_list\" \"$target_status_code_list\" \"$classification\" \"$classification_reason\" $conn_trace_id";

const COLUMNS: &Columns = &[
    ("time", Field::End, 1),
    ("request_creation_time", Field::Start, 1),
    (
        "request_processing_time target_processing_time response_processing_time",
        Field::DurationPart(Unit::Seconds),
        1,
    ),
    ("client", Field::ClientAndPort, 1),
    ("elb_status_code", Field::Status, 1),
    ("sent_bytes", Field::Bytes, 1),
    ("request", Field::UrlRequest, 1),
    ("user_agent", USER_AGENT, 1),
    ("domain_name", HOST, 2),
];
