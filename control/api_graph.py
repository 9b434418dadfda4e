"""The graph of the API: the shared graph, and the use cases that need secrets or the catalogue."""

from functools import cached_property

from temporalio.client import Client

from nodesmith.bus.connection import Bus
from nodesmith.bus.nats_credentials import CredentialIssuer
from nodesmith.bus.presence import Presence
from nodesmith.bus.running_models import ModelsClient
from nodesmith.contracts.temporal.operations import CONTROL_QUEUE
from nodesmith.control.api_secrets import ApiSecrets
from nodesmith.control.graph import ControlGraph
from nodesmith.gallery.catalogue import Catalogue
from nodesmith.gallery.signatures import PublishedSignatures
from nodesmith.gallery.tags import RegistryTags
from nodesmith.runtime.replica_certificates import ReplicaAuthority
from nodesmith.runtime.settings import ControlSettings
from nodesmith.runtime.tls_trust import fingerprint
from nodesmith.services.access.callers import Access, KnownCredentials
from nodesmith.services.access.invites import Invites, JoinAddress
from nodesmith.services.batches.batches import BatchService
from nodesmith.services.models.deploying import ModelService
from nodesmith.services.models.loads import ModelLoads
from nodesmith.services.models.starter import ReplicaStarter
from nodesmith.services.nodes.backend_stop import BackendStop
from nodesmith.services.nodes.registration import Registration
from nodesmith.services.nodes.revocation import Revocation
from nodesmith.services.nodes.running_models import NodeModels
from nodesmith.services.nodes.trust_lists import TrustListNotifier
from nodesmith.services.operations.admission import Admission
from nodesmith.services.operations.artifact_check import ArtifactCheck
from nodesmith.services.operations.bulk_actions import BulkActions
from nodesmith.services.operations.cancellation import Cancellation
from nodesmith.services.operations.hold import HoldService
from nodesmith.services.operations.intents import Intents, UriRules
from nodesmith.services.operations.orders import OrderRenewals, Orders
from nodesmith.store.access.credentials import Credentials
from nodesmith.store.access.invites import Invites as InviteTable
from nodesmith.store.access.sign_in import SignIn
from nodesmith.store.access.tokens import Tokens
from nodesmith.store.access.trust_lists import TrustVersions
from nodesmith.store.catalogue.sources import SourceTable
from nodesmith.store.database import Database
from nodesmith.store.operations.hold import Holds
from nodesmith.store.operations.idempotency import IdempotencyKeys
from nodesmith.store.operations.orders import OrderTable


class ApiGraph(ControlGraph):
    def __init__(
        self,
        settings: ControlSettings,
        database: Database,
        bus: Bus,
        temporal: Client,
        *,
        secrets: ApiSecrets,
        issuer: CredentialIssuer,
        catalogue: Catalogue,
        revocation: Revocation,
        queue: str = CONTROL_QUEUE,
    ) -> None:
        super().__init__(settings, database, bus, temporal, queue=queue)
        self.secrets = secrets
        self.issuer = issuer
        self.catalogue = catalogue
        self._revocation = revocation

    # PostgreSQL -----------------------------------------------------------------------------------------------

    @cached_property
    def order_table(self) -> OrderTable:
        return OrderTable(self.database)

    @cached_property
    def keys(self) -> IdempotencyKeys:
        return IdempotencyKeys(self.database)

    @cached_property
    def sign_in(self) -> SignIn:
        return SignIn(self.database)

    @cached_property
    def sources(self) -> SourceTable:
        return SourceTable(self.database, self.settings.secret(self.settings.sources_key_file))

    # operations -----------------------------------------------------------------------------------------------

    @cached_property
    def orders(self) -> Orders:
        return Orders(self.secrets.keyring, self.order_table, self.operations, self.clock)

    @cached_property
    def renewals(self) -> OrderRenewals:
        return OrderRenewals(self.secrets.keyring, self.order_table, self.runs, self.clock)

    @cached_property
    def intents(self) -> Intents:
        policy, timeout = self.settings.sources(), self.settings.registry_timeout.total_seconds()
        return Intents(
            self.catalogue,
            UriRules(
                self.settings.uri_schemes,
                without_digest=self.settings.uri_without_digest,
                sources=policy,
                role=self.settings.uri_installs,
            ),
            RegistryTags(self.sources.access, policy, timeout=timeout),
            ArtifactCheck(PublishedSignatures(self.sources.access, policy, timeout=timeout), self.clock),
        )

    @cached_property
    def admission(self) -> Admission:
        return Admission(
            nodes=self.nodes,
            inventory=self.inventory_table,
            operations=self.operations,
            lock=self.lock,
            orders=self.orders,
            intents=self.intents,
            keys=self.keys,
            policy=self.settings.policy,
            clock=self.clock,
        )

    @cached_property
    def batch_service(self) -> BatchService:
        return BatchService(
            nodes=self.nodes,
            inventory=self.inventory_table,
            batches=self.batches,
            runs=self.runs,
            intents=self.intents,
            orders=self.orders,
            keys=self.keys,
            policy=self.settings.policy,
            clock=self.clock,
        )

    @cached_property
    def cancellation(self) -> Cancellation:
        return Cancellation(self.nodes, self.operations, self.runs)

    @cached_property
    def bulk(self) -> BulkActions:
        return BulkActions(self.history, self.cancellation)

    @cached_property
    def hold_service(self) -> HoldService:
        return HoldService(Holds(self.database), self.operations, self.runs, self.clock)

    # models ---------------------------------------------------------------------------------------------------

    @cached_property
    def model_loads(self) -> ModelLoads:
        return ModelLoads(
            nodes=self.nodes,
            inventory=self.inventory_table,
            admission=self.admission,
            lock=self.lock,
            intents=self.intents,
            policy=self.settings.policy,
            clock=self.clock,
        )

    @cached_property
    def replica_starter(self) -> ReplicaStarter:
        return ReplicaStarter(self.replicas, self.model_loads, self.placement_feed)

    @cached_property
    def model_service(self) -> ModelService:
        return ModelService(
            deployments=self.deployments,
            replicas=self.replicas,
            snapshots=self.fleet_snapshots,
            intents=self.intents,
            inventory=self.inventory_table,
            clock=self.clock,
        )

    # nodes ----------------------------------------------------------------------------------------------------

    @cached_property
    def registration(self) -> Registration:
        return Registration(
            nodes=self.nodes,
            claims=self.node_life,
            presence=self.presence,
            invites=self.invites,
            trail=self.audit,
            issuer=self.issuer,
            nats_credentials=self.nats_credentials,
            revocation=self.revocation,
            registration_token=self.secrets.registration_token,
            nats_url=self.settings.nats_public_url or self.settings.nats_url,
            credential_lifetime=self.settings.nats_credential_lifetime,
            auto_approve=self.settings.auto_approve,
            max_pending=self.settings.pending_nodes,
            localai_workers=self.settings.localai_workers,
            clock=self.clock,
            trusted=self.secrets.keyring,
            orders=self.order_table,
            certificates=self.replica_authority,
        )

    @cached_property
    def replica_authority(self) -> ReplicaAuthority | None:
        ca, key = self.settings.gateway_ca_file, self.settings.gateway_ca_key_file
        return ReplicaAuthority.load(ca, key) if ca and key else None

    @cached_property
    def revocation(self) -> Revocation:
        return self._revocation

    @cached_property
    def backend_stop(self) -> BackendStop:
        return BackendStop(Presence(self.bus, self.secrets.keyring.seal_request))

    @cached_property
    def models(self) -> NodeModels:
        return NodeModels(ModelsClient(self.bus, self.secrets.keyring.seal_request), self.presence, self.clock)

    @cached_property
    def trust_notifier(self) -> TrustListNotifier:
        return TrustListNotifier(self.secrets.keyring, TrustVersions(self.database), self.presence, self.clock)

    # access ---------------------------------------------------------------------------------------------------

    @cached_property
    def invites(self) -> Invites:
        ca = self.settings.ca_file.read_text() if self.settings.ca_file else ""
        url = self.settings.public_url or f"http://{self.settings.api_host}:{self.settings.api_port}"
        join_address = JoinAddress(url, ca, fingerprint(ca) if ca else "", self.secrets.keyring)
        return Invites(InviteTable(self.database), self.labels, self.audit, join_address, self.clock)

    @cached_property
    def access(self) -> Access:
        return Access(Tokens(self.database), self.sign_in, self.secrets.admin_token, self.clock)

    @cached_property
    def credentials(self) -> KnownCredentials:
        return KnownCredentials(Credentials(self.database), (self.secrets.admin_token, self.secrets.registration_token))
