//! The rules of the model, as a list of calls whose answers are those of a real API server.
//!
//! `answers.json` holds the answers of a real one (kube-apiserver 1.36). Each test runs its calls against the in-process
//! server and compares. With `FLEET_API_SERVER=KUBECONFIG` the calls also go to that server (with its garbage collector
//! running); with `BLESS=1` in addition its answers are written down.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod collecting;
mod deleting;
mod reading;
mod session;
mod topology;
mod writing;

use session::{Session, check};

macro_rules! rules {
    ($($name:ident: $script:path;)*) => {
        $(
            #[test]
            fn $name() {
                check(stringify!($name), |session| Box::pin($script(session)));
            }
        )*
    };
}

rules! {
    objects_are_created_updated_and_patched_by_version: writing::by_version;
    custom_resources_count_generations_and_have_a_status_of_their_own: writing::generations;
    a_lease_is_replaced_by_version_only: writing::leases;
    applying_owns_fields_and_gives_them_up: writing::applying;
    conflicts_of_field_managers_are_refused_or_forced: writing::conflicts;
    lists_are_merged_by_key: writing::lists;
    nothing_is_stored_by_a_dry_run: writing::dry_runs;
    what_has_finalizers_is_marked_and_waits: deleting::finalizers;
    deletions_have_preconditions: deleting::preconditions;
    lists_are_selected_and_paged: reading::lists;
    watches_tell_of_every_change: reading::watches;
    watches_can_begin_with_what_is_there: reading::streaming;
    reviews_are_answered: reading::reviews;
    what_has_lost_its_owner_goes: collecting::background;
    an_owner_waits_for_what_blocks_it: collecting::foreground;
    orphans_stay: collecting::orphans;
}
